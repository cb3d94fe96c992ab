"""Tent. Legend: B batch, K classes."""

import torch

from tasks.adaptation.losses import entropies
from tasks.adaptation.methods.record import OptimiserSteps, forward
from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted.subnet import AdaptiveSubnet


class Tent:
    """Lowers the mean entropy of a batch's answers by scales and biases of normalisation layers, one step per batch.
    The answers are computed before the step. Source: Wang et al., ICLR 2021.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings) -> None:
        self.subnet, self._settings = subnet, settings
        self._steps = OptimiserSteps(subnet.affine(), settings)

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK = forward(self.subnet, x_BCHW, self._settings)
        self._steps.take(entropies(logits_BK).mean())
        return logits_BK.detach()

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()
        self._steps.reset()

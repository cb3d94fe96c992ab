"""Methods that adapt by gradients: Tent and ROID. Legend: B batch, K classes."""

import torch

from tasks.adaptation.methods.record import (
    OptimiserSteps,
    entropies,
    forward,
    prior_corrected,
    roid_weights,
    soft_likelihood_ratios,
)
from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted import AdaptiveSubnet

NEWEST_SHARE = 0.1
"""Share of the latest batch in the mean answer."""


class Roid:
    """Soft likelihood ratios of certain and diverse samples; weights stay near the source, class shares correct the answers.

    After each step every adapted weight becomes α θ + (1 − α) θ0. Source: Marsden, Döbler and Yang, WACV 2024, §3.2 to 3.4; the
    paper's consistency under augmentation is left out.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings) -> None:
        self.subnet, self._settings = subnet, settings
        self._steps = OptimiserSteps(subnet.affine(), settings)
        self._origin = [parameter.detach().clone() for parameter in self._steps.parameters]
        self._mean_K: torch.Tensor | None = None

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK = forward(self.subnet, x_BCHW, self._settings)
        if self._mean_K is None:
            self._mean_K = torch.full((logits_BK.shape[1],), 1 / logits_BK.shape[1])
        weight_B = roid_weights(logits_BK, self._mean_K, self._settings.temperature)
        self._mean_K = torch.lerp(self._mean_K, logits_BK.detach().softmax(1).mean(0), NEWEST_SHARE)
        self._steps.take((weight_B * soft_likelihood_ratios(logits_BK)).mean())
        self._return()
        return prior_corrected(logits_BK.detach())

    @torch.no_grad()
    def _return(self) -> None:
        for parameter, origin in zip(self._steps.parameters, self._origin, strict=True):
            parameter.lerp_(origin, 1 - self._settings.kept_share)

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()
        self._steps.reset()
        self._mean_K = None


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

"""EATA. Legend: B batch, K classes."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from tasks.adaptation.methods.record import OptimiserSteps, entropies, forward, reliable_weights
from tasks.adaptation.methods.tent import NEWEST_SHARE
from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted import AdaptiveSubnet


class Eata:
    """Tent on reliable and diverse samples; important parameters are held near the source.

    A sample counts, with weight exp(E0 − E), if its entropy E is below E0 and the absolute cosine between its answer and the
    mean answer so far is below a threshold. The loss is the mean over these samples plus β Σ ω (θ − θ0)², with ω the mean
    square of the gradients of the cross-entropy to the source's own answers (the diagonal of the Fisher information).
    Source: Niu et al., ICML 2022, eq. 2 to 9.
    source: batches (B, C, H, W) for ω.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings, source: Sequence[torch.Tensor]) -> None:
        self.subnet, self._settings = subnet, settings
        self._steps = OptimiserSteps(subnet.affine(), settings)
        self._origin = [parameter.detach().clone() for parameter in self._steps.parameters]
        self.importance = self._fisher(source)
        self._mean_K: torch.Tensor | None = None

    def _fisher(self, source: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """ω of each parameter."""
        squares = [torch.zeros_like(parameter) for parameter in self._steps.parameters]
        count = 0
        for x_1CHW in (image for x_BCHW in source for image in x_BCHW.split(1)):
            logits_1K = self.subnet(x_1CHW)
            found = self._steps.gradients(functional.cross_entropy(logits_1K, logits_1K.argmax(1)))
            for square, gradient in zip(squares, found, strict=True):
                if gradient is not None:
                    square += gradient.square()
            count += 1
        return [square / max(1, count) for square in squares]

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK = forward(self.subnet, x_BCHW, self._settings)
        entropy_B = entropies(logits_BK)
        weight_B = reliable_weights(entropy_B, logits_BK.shape[1], self._settings.entropy_share)
        p_BK = logits_BK.detach().softmax(1)
        if self._mean_K is not None:
            cosine_B = functional.cosine_similarity(p_BK, self._mean_K[None], dim=1)
            weight_B = weight_B * (cosine_B.abs() < self._settings.redundancy)
        chosen_B = weight_B > 0
        if chosen_B.any():
            mean_K = p_BK[chosen_B].mean(0)
            self._mean_K = mean_K if self._mean_K is None else torch.lerp(self._mean_K, mean_K, NEWEST_SHARE)
            self._steps.take((weight_B * entropy_B)[chosen_B].mean() + self._settings.fisher * self._away())
        return logits_BK.detach()

    def _away(self) -> torch.Tensor:
        """Σ ω (θ − θ0)²."""
        parts = zip(self.importance, self._steps.parameters, self._origin, strict=True)
        return torch.stack([(omega * (now - origin).square()).sum() for omega, now, origin in parts]).sum()

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()
        self._steps.reset()
        self._mean_K = None

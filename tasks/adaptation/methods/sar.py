"""SAR. Legend: B batch, K classes."""

import torch

from tasks.adaptation.methods.record import OptimiserSteps, entropies, forward, is_reliable
from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted import AdaptiveSubnet

NEWEST_SHARE = 0.1
"""Share of the latest batch in the mean entropy."""


class Sar:
    """Lowers the entropy of reliable samples towards a flat minimum, and goes back to the source when entropy collapses.

    The gradient g of the mean entropy of reliable samples leads to the point θ + ρ g/‖g‖. The step starts at θ but uses the
    gradient at this point, over the samples that are reliable there, too. Their mean entropy e at this point is averaged over
    batches (0.9 e + 0.1 new); below a threshold the source is restored. The last normalisation layers do not adapt. Source: Niu
    et al., ICLR 2023, eq. 2 to 6 and §4.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings) -> None:
        self.subnet = subnet
        self._settings = settings.model_copy(update={"optimiser": "sgd"})
        self._steps = OptimiserSteps(subnet.affine(settings.adapted_layers), self._settings)
        self._mean: float | None = None

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        logits_BK = forward(self.subnet, x_BCHW, self._settings)
        entropy_B = entropies(logits_BK)
        chosen_B = self._reliable(entropy_B, logits_BK)
        if chosen_B.any():
            origin = [parameter.detach().clone() for parameter in self._steps.parameters]
            self._climb(self._steps.gradients(entropy_B[chosen_B].mean()))
            self._descend(x_BCHW, chosen_B, origin)
        return logits_BK.detach()

    def _reliable(self, entropy_B: torch.Tensor, logits_BK: torch.Tensor) -> torch.Tensor:
        return is_reliable(entropy_B.detach(), logits_BK.shape[1], self._settings.entropy_share)

    @torch.no_grad()
    def _climb(self, gradients: list[torch.Tensor | None]) -> None:
        """Move to θ + ρ g/‖g‖."""
        norm = torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt()
        if norm == 0:
            return
        for parameter, gradient in zip(self._steps.parameters, gradients, strict=True):
            if gradient is not None:
                parameter.add_(self._settings.radius * gradient / norm)

    def _descend(self, x_BCHW: torch.Tensor, chosen_B: torch.Tensor, origin: list[torch.Tensor]) -> None:
        """Take one step from θ (`origin`) along the gradient at the current parameters."""
        logits_BK = forward(self.subnet, x_BCHW, self._settings, keeps=False)
        entropy_B = entropies(logits_BK)
        chosen_B = chosen_B & self._reliable(entropy_B, logits_BK)
        found = self._steps.gradients(entropy_B[chosen_B].mean()) if chosen_B.any() else None
        with torch.no_grad():
            for parameter, before in zip(self._steps.parameters, origin, strict=True):
                parameter.copy_(before)
        if found is None:
            return
        self._steps.take_along(found)
        self._recover(entropy_B[chosen_B].mean().item())

    def _recover(self, entropy: float) -> None:
        """Go back to the source if the mean entropy is too low."""
        self._mean = entropy if self._mean is None else (1 - NEWEST_SHARE) * self._mean + NEWEST_SHARE * entropy
        if self._mean < self._settings.recover_below:
            self.reset()

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()
        self._steps.reset()
        self._mean = None

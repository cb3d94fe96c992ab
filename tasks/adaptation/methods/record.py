"""The protocol of methods that adapt, the method without gradients, and steps of an optimiser."""

from typing import Protocol

import torch
from torch import nn

from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted.subnet import AdaptiveSubnet


class AdaptationMethod(Protocol):
    """A method that adapts one SubNet, batch by batch, without labels."""

    subnet: AdaptiveSubnet

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Adapt to a batch; the method's logits (B, K) for it."""
        ...

    def reset(self) -> None:
        """Go back to the source, as if no batch had been seen."""
        ...


class BatchStatistics:
    """BatchNorm by the statistics of the batch, or of batch and source (`MethodSettings.prior_images`); nothing is learned.
    Source: Nado et al., arXiv 2006.10963; mixed: Schneider et al., NeurIPS 2020.
    """

    def __init__(self, subnet: AdaptiveSubnet, settings: MethodSettings) -> None:
        self.subnet, self._settings = subnet, settings

    @torch.no_grad()
    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        return forward(self.subnet, x_BCHW, self._settings)

    def reset(self) -> None:
        """Go back to the source."""
        self.subnet.reset()


def forward(
    subnet: AdaptiveSubnet, x_BCHW: torch.Tensor, settings: MethodSettings, *, keeps: bool = True
) -> torch.Tensor:
    """Logits (B, K) with BatchNorm by the batch; with `keeps`, the batch updates the running statistics."""
    with subnet.by_batch(settings.prior_images, settings.newest_share, keeps=keeps):
        return subnet(x_BCHW)


class OptimiserSteps:
    """Steps of an optimiser on a few parameters."""

    def __init__(self, parameters: list[nn.Parameter], settings: MethodSettings) -> None:
        self.parameters = parameters
        self._settings = settings
        self.reset()

    def reset(self) -> None:
        """Forget the moments."""
        rate = self._settings.learning_rate
        self._optimiser: torch.optim.Optimizer = (
            torch.optim.Adam(self.parameters, lr=rate)
            if self._settings.optimiser == "adam"
            else torch.optim.SGD(self.parameters, lr=rate, momentum=0.9)
        )

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor | None]:
        """Gradient of the loss for each parameter; None if the parameter has no influence."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True))

    def take(self, loss: torch.Tensor) -> None:
        """One step down the loss."""
        self.take_along(self.gradients(loss))

    def take_along(self, gradients: list[torch.Tensor | None]) -> None:
        """One step with these gradients."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

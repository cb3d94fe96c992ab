"""The protocol of adaptation methods, losses and weights of samples without labels, and steps of an optimiser.

Methods without gradients, and methods within a budget of memory, are here, too.

Legend: B batch, C channels, H height, W width, K classes.
"""

import copy
import math
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from tasks.adaptation.settings import MethodSettings
from tasks.evaluation.adapted import AdaptiveSubnet
from tasks.training.memory import SavingPlan, StepMemory, fit


def entropies(logits_BK: torch.Tensor) -> torch.Tensor:
    """(B,) entropy of the answers [nats]."""
    log_p_BK = logits_BK.log_softmax(1)
    return -(log_p_BK.exp() * log_p_BK).sum(1)


def soft_likelihood_ratios(logits_BK: torch.Tensor) -> torch.Tensor:
    """(B,): −Σ_c p_c · log(p_c / Σ_{j≠c} p_j). Source: ROID (Marsden et al., WACV 2024), eq. 2.
    Its gradient does not vanish when the network is certain. log(1 − p_c) is computed from the logits of the other classes.
    """
    classes = logits_BK.shape[1]
    own = torch.eye(classes, dtype=torch.bool, device=logits_BK.device)
    others_BK = logits_BK[:, None, :].masked_fill(own, -math.inf).logsumexp(2)
    return -(logits_BK.softmax(1) * (logits_BK - others_BK)).sum(1)


def is_reliable(entropy_B: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """(B,) bool: entropy below `share` · ln K. Source: EATA (Niu et al., ICML 2022), eq. 3; SAR (ICLR 2023), eq. 2."""
    return entropy_B < share * math.log(classes)


def reliable_weights(entropy_B: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """(B,): exp(E0 − E) if E < E0 = share · ln K, else 0. Source: EATA, eq. 3. No gradient flows through the weights."""
    entropy_B = entropy_B.detach()
    return torch.exp(share * math.log(classes) - entropy_B) * is_reliable(entropy_B, classes, share)


def scaled_to_unit(value_B: torch.Tensor) -> torch.Tensor:
    """(B,) moved and scaled to [0, 1]; all 1 if all are equal, as in a batch of one image."""
    spread = value_B.max() - value_B.min()
    return (value_B - value_B.min()) / spread if spread > 0 else torch.ones_like(value_B)


def roid_weights(logits_BK: torch.Tensor, mean_K: torch.Tensor, temperature: float) -> torch.Tensor:
    """(B,) weights by diversity and certainty. Source: ROID, §3.2. No gradient flows through the weights.

    Diversity is 1 − cos(p, mean), certainty is −entropy, both scaled to [0, 1] over the batch. The weight is exp(diversity ·
    certainty / temperature), or 0 if diversity is below its mean. mean_K: mean answer so far.
    """
    logits_BK = logits_BK.detach()
    p_BK = logits_BK.softmax(1)
    diversity_B = scaled_to_unit(1 - functional.cosine_similarity(p_BK, mean_K[None], dim=1))
    certainty_B = scaled_to_unit(-entropies(logits_BK))
    return torch.exp(diversity_B * certainty_B / temperature) * (diversity_B >= diversity_B.mean())


def prior_corrected(logits_BK: torch.Tensor) -> torch.Tensor:
    """Logits (B, K) after the answers are multiplied by the smoothed class shares of the batch. Source: ROID, §3.4.
    The shares p̄ are the mean answer; smoothed: (p̄ + g) / (1 + gK) with g = max(1/B, 1/K) / max p̄.
    """
    batch, classes = logits_BK.shape
    mean_K = logits_BK.softmax(1).mean(0)
    smoothing = max(1 / batch, 1 / classes) / mean_K.max()
    return logits_BK.log_softmax(1) + ((mean_K + smoothing) / (1 + smoothing * classes)).log()


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


class Budgeted:
    """Adapts bit by bit like another method; activations that exceed the budget are stored on disk.

    Plans are made at the first batch of each shape, by steps of a copy of the method. The budget counts all tensors of the
    method, the batch, and a step's own memory. plans: by the shape of a batch.
    `adapt` raises UserError if the budget cannot be met, with the smallest feasible budget in its line; the method is unchanged
    then.
    """

    def __init__(self, method: AdaptationMethod, memory_mib: float) -> None:
        self.subnet, self._method, self._memory_mib = method.subnet, method, memory_mib
        self.plans: dict[torch.Size, SavingPlan] = {}
        self._memories: dict[torch.Size, StepMemory] = {}

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        if x_BCHW.shape not in self.plans:
            plan = self._planned(x_BCHW)
            self.plans[x_BCHW.shape], self._memories[x_BCHW.shape] = plan, StepMemory(plan.kept_bytes)
        return _step(self._method, x_BCHW, self._memories[x_BCHW.shape])

    def _planned(self, x_BCHW: torch.Tensor) -> SavingPlan:
        twin = self._method

        def given() -> list[torch.Tensor]:
            nonlocal twin
            copies: dict[int, object] = {}
            twin = copy.deepcopy(self._method, copies)
            return [x_BCHW, *(one for one in copies.values() if isinstance(one, torch.Tensor))]

        def step(memory: StepMemory) -> None:
            _step(twin, x_BCHW, memory)
            _step(twin, x_BCHW, memory)  # the second step starts with the optimiser's state in memory

        where = f"memory_mib={self._memory_mib:g} for batches of {len(x_BCHW)} images"
        return fit(step, self._memory_mib, where=where, given=given)

    def reset(self) -> None:
        """Go back to the source."""
        self._method.reset()


def _step(method: AdaptationMethod, x_BCHW: torch.Tensor, memory: StepMemory) -> torch.Tensor:
    subnets = [each for each in vars(method).values() if isinstance(each, AdaptiveSubnet)]
    staying = [tensor for each in subnets for tensor in (*each.network.parameters(), *each.network.buffers())]
    with memory.forward([*staying, x_BCHW]):
        return method.adapt(x_BCHW)

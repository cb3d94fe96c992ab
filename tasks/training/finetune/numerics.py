"""Losses of a SubNet from targets and from a teacher's soft labels. Legend: B distributions, K classes.

Mixed precision that avoids a fault of bfloat16 convolutions on CPUs.

oneDNN (torch 2.15) leaves a kernel's gradient unset at taps that only ever meet padding; the right gradient is 0. With an
input one pixel wide, all taps but the middle one are such taps. These convolutions are computed in float32.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tasks.data.batches import Nested, each, tensors
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.training.finetune.settings import Settings, TrainSettings

ALPHAS = (-1.0, 1.0)
LARGEST_RATIO = 5.0
"""Clip of importance ratios; ALPHAS and LARGEST_RATIO are AlphaNet's."""


def loss_of(
    outputs: Nested,
    target: Any,
    settings: TrainSettings,
    taught: Nested | None = None,
    share: float = 1.0,
    problem: LearningProblem = CLASSIFICATION,
) -> torch.Tensor:
    """The loss of raw outputs from targets, mixed with the loss from a teacher's raw outputs if there is a teacher.

    target: as the problem defines it; in classification classes (B,), or soft labels (B, K). share: the weight of the teacher.
    """
    weight = 0.0 if taught is None else share
    outputs = each(outputs, lambda one: one.to(torch.promote_types(one.dtype, torch.float32)))
    loss = torch.zeros((), device=tensors(outputs)[0].device)
    if weight < 1:
        loss = loss + (1 - weight) * problem.loss(outputs, target, settings.label_smoothing)
    if weight > 0:
        assert taught is not None
        assert isinstance(settings, Settings)
        divergence = alpha_divergence if settings.divergence == "alpha" else soft_cross_entropy
        loss = loss + weight * problem.distillation(outputs, each(taught, lambda one: one.to(loss.dtype)), divergence)
    return loss


def soft_cross_entropy(logits_BK: torch.Tensor, teacher_BK: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler divergence plus the teacher's entropy, which has no gradient."""
    return functional.cross_entropy(logits_BK, teacher_BK.softmax(1))


def alpha_divergence(logits_BK: torch.Tensor, teacher_BK: torch.Tensor) -> torch.Tensor:
    """The larger of two alpha-divergences per image: one punishes overestimated uncertainty, the other underestimated.

    The value is a surrogate with the gradient of the clipped divergence; source: AlphaNet (ICML 2021), equations 6 to 9.
    """
    log_q_BK = logits_BK.log_softmax(1)
    log_ratio_BK = teacher_BK.log_softmax(1) - log_q_BK.detach()
    q_BK = log_q_BK.detach().exp()
    found = [_clipped(q_BK, log_ratio_BK, log_q_BK, alpha) for alpha in ALPHAS]
    (low_B, low_loss_B), (high_B, high_loss_B) = found
    return torch.where(low_B > high_B, low_loss_B, high_loss_B).mean()


def _clipped(
    q_BK: torch.Tensor, log_ratio_BK: torch.Tensor, log_q_BK: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence (B,), and a loss (B,) with its gradient: -E_q[rho(p/q) grad log q], rho(t) = t f'(t) - f(t)."""
    if abs(alpha - 1) < 1e-3:  # f(t) = t log t
        clipped_BK = log_ratio_BK.clamp(max=math.log(LARGEST_RATIO))
        rho_BK = clipped_BK.exp()
        value_BK = rho_BK * clipped_BK
    else:  # f(t) = (t^alpha - 1) / (alpha (alpha - 1))
        power_BK = (alpha * log_ratio_BK).exp().clamp(max=LARGEST_RATIO)
        value_BK = (power_BK - 1) / (alpha * (alpha - 1))
        rho_BK = power_BK / alpha
    return (q_BK * value_BK).sum(1), -(q_BK * rho_BK * log_q_BK).sum(1)


def distance(result: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean squared error divided by the variance of `wanted`; in float32 at least."""
    kind = torch.promote_types(wanted.dtype, torch.float32)
    result, wanted = result.to(kind), wanted.to(kind)
    return (result - wanted).square().mean() / wanted.var(correction=0).clamp_min(torch.finfo(kind).tiny)


CONVOLUTIONS: dict[Callable[..., Any], int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
"""Function -> its number of spatial dimensions."""


@contextmanager
def mixed_precision(device: torch.device, *, enabled: bool) -> Iterator[None]:
    """Compute forward passes in bfloat16, except the convolutions above; backward passes have the types of the forward pass."""
    mode = _FullWhereUnseen() if enabled and device.type == "cpu" else nullcontext()
    with torch.autocast(device.type, torch.bfloat16, enabled=enabled), mode:
        yield


class _FullWhereUnseen(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CONVOLUTIONS and _Convolution(*args, **kwargs).has_unseen_taps(CONVOLUTIONS[func]):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_in_full, args), **{name: _in_full(value) for name, value in kwargs.items()})
        return func(*args, **kwargs)


def _in_full(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """Arguments of `torch.conv1d`, `conv2d` and `conv3d`, in their order, since torch calls them by position, too."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    def has_unseen_taps(self, dimensions: int) -> bool:
        """Whether a tap of the kernel meets only padding. dimensions: number of spatial ones."""
        strides, dilations = _each(self.stride, dimensions), _each(self.dilation, dimensions)
        sizes, kernels = self.input.shape[-dimensions:], self.weight.shape[-dimensions:]
        if self.padding == "same":
            paddings = [gap * (kernel - 1) // 2 for gap, kernel in zip(dilations, kernels, strict=True)]
        else:
            paddings = _each(0 if self.padding == "valid" else self.padding, dimensions)
        return any(map(has_unseen_taps, sizes, kernels, strides, paddings, dilations))


def _each(value: int | Sequence[int], dimensions: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dimensions if len(values) == 1 else values


@cache
def has_unseen_taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether a tap of a kernel meets only padding at every position of the kernel along this axis."""
    places = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return not all(
        any(0 <= place * stride + tap * dilation - padding < size for place in range(places)) for tap in range(kernel)
    )

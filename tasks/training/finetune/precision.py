"""Mixed precision that avoids a fault of bfloat16 convolutions on CPUs.

oneDNN (torch 2.15) leaves a kernel's gradient unset at taps that only ever meet padding; the right gradient is 0. With an
input one pixel wide, all taps but the middle one are such taps. These convolutions are computed in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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
        if func in CONVOLUTIONS and _has_unseen_taps(CONVOLUTIONS[func], *args, **kwargs):
            with torch.autocast("cpu", enabled=False):
                return func(*map(_in_full, args), **{name: _in_full(value) for name, value in kwargs.items()})
        return func(*args, **kwargs)


def _in_full(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


def _has_unseen_taps(
    dimensions: int,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> bool:
    if padding == "valid":
        padding = 0
    strides, dilations = _each(stride, dimensions), _each(dilation, dimensions)
    sizes, kernels = input.shape[-dimensions:], weight.shape[-dimensions:]
    if padding == "same":
        paddings = [gap * (kernel - 1) // 2 for gap, kernel in zip(dilations, kernels, strict=True)]
    else:
        paddings = _each(padding, dimensions)
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

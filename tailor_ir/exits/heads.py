"""The kinds of heads.

`convolution`: on feature maps a 3×3 convolution with stride 2, BatchNorm and ReLU, then the mean over positions and a linear
layer (AdaScale §III-A). `light`: the mean and the linear layer alone. On tokens, both are the light head.
"""

from math import prod, sqrt

import torch

from tailor_ir.alternatives.sketch import NotHere, Sketch
from tailor_ir.axes import Axis
from tailor_ir.exits.record import Head, HeadKind

MOST_CHANNELS, FEWEST_CHANNELS = 128, 8
"""Bounds on the channels of a head's convolution (else as many as its place has), so that heads stay small."""
CHANNELS_LAST = (0, 3, 1, 2)


def _write_convolution(head: Head) -> str:
    sketch = head.sketch
    x = sketch.site.exit
    if len(sketch.shape(x)) != 4:
        return _write_light(head)
    if _positions(sketch, x) == (1, 2):
        shape = sketch.shape(x)
        x = sketch.node("channels_first", "Transpose", (x,), _ordered(shape), {"perm": CHANNELS_LAST})
    x = _convolved(head, x)
    x = sketch.node("relu", "Relu", (x,), sketch.shape(x))
    return _linear(head, _pooled(sketch, x, (2, 3)))


def _write_light(head: Head) -> str:
    sketch = head.sketch
    x = sketch.site.exit
    return _linear(head, _pooled(sketch, x, _positions(sketch, x)))


def _positions(sketch: Sketch, x: str) -> tuple[int, ...]:
    """The dimensions of a value (B, …) that are positions: all but the samples and the channels."""
    rank, axes = len(sketch.shape(x)), sketch.network.axes(x)
    if not 2 <= rank <= 4 or not axes[0].batched:
        raise NotHere(f"{sketch.shape(x)} is neither a feature map nor tokens nor a vector")
    channels_last = rank == 3 or (rank == 4 and _is_channels(axes[3]) and not _is_channels(axes[1]))
    if rank == 3 and not _is_channels(axes[2]) and _is_channels(axes[1]):
        channels_last = False
    return tuple(range(1, rank - 1)) if channels_last else tuple(range(2, rank))


def _is_channels(axis: Axis) -> bool:
    """Whether an axis has elastic channels and no positions."""
    return bool(axis.groups) and not axis.spatial


def _ordered(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[at] for at in CHANNELS_LAST)


def _convolved(head: Head, x: str) -> str:
    """A convolution with stride 2 of x (B, C, H, W), and BatchNorm; a linear map if x has a single position."""
    sketch, (samples, channels, *sides) = head.sketch, head.sketch.shape(x)
    kernel, stride = (3, 2) if max(sides) > 1 else (1, 1)
    macs = samples * channels * kernel**2 * prod(-(-side // stride) for side in sides)  # per output channel of the head
    affordable = max(FEWEST_CHANNELS, head.most_macs // macs // FEWEST_CHANNELS * FEWEST_CHANNELS)
    weight = _he(head, (min(channels, MOST_CHANNELS, affordable), channels, kernel, kernel))
    x = sketch.convolution("convolution", x, weight, stride=stride)
    return sketch.batch_norm("norm", x)


def _pooled(sketch: Sketch, x: str, positions: tuple[int, ...]) -> str:
    """The mean (B, C) of x over positions."""
    shape = sketch.shape(x)
    if not positions:
        return x
    if positions != (2, 3):
        left = tuple(size for at, size in enumerate(shape) if at not in positions)
        return sketch.node("pool", "ReduceMean", (x,), left, {"axes": positions, "keepdims": 0})
    pooled = sketch.node("pool", "GlobalAveragePool", (x,), (*shape[:2], 1, 1))
    return sketch.node("flatten", "Flatten", (pooled,), shape[:2], {"axis": 1})


def _linear(head: Head, x: str) -> str:
    channels = head.sketch.shape(x)[-1]
    weight = torch.randn(head.classes, channels, generator=head.generator) / sqrt(channels)
    bias = head.sketch.parameter("linear.bias", torch.zeros(head.classes))
    return head.sketch.linear("linear", x, weight, bias)


def _he(head: Head, shape: tuple[int, ...]) -> torch.Tensor:
    """First weights for a layer before a ReLU. Source: He et al., *Delving deep into rectifiers* (ICCV 2015)."""
    return torch.randn(shape, generator=head.generator) * sqrt(2 / prod(shape[1:]))


CONVOLUTION = HeadKind(name="convolution", write=_write_convolution)
LIGHT = HeadKind(name="light", write=_write_light)

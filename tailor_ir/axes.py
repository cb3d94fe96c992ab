"""Symbolic axes: the meaning of a tensor's dimension, which determines its size under any config.

While a network is read, dimensions are `Dim`s, joined by union-find as operators demand that they agree. Afterwards
they are frozen into `Axis` expressions: a constant, the batch, a channel group that is cut in one piece, a spatial size
as a function of the input's, a concatenation or a product of axes. `dims.AxisTable` makes equal expressions one object,
so that they compare and hash by identity.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

FLOAT_BYTES = 4
"""Size of a float32 [bytes]."""


@dataclass(frozen=True, eq=False)
class Axis:
    """The meaning of a dimension; `size` is its length in the largest network."""

    size: int

    @property
    def parts(self) -> tuple["Axis", ...]:
        """The axes from which this axis is derived."""
        return ()

    @cached_property
    def leaves(self) -> frozenset["Axis"]:
        """The channel groups, spatial inputs and batch that this axis depends on."""
        own = () if self.parts or isinstance(self, Fixed) else (self,)
        return frozenset(own).union(*(part.leaves for part in self.parts))

    @cached_property
    def groups(self) -> frozenset[int]:
        """The channel groups and kernels that this axis depends on."""
        return frozenset(leaf.group for leaf in self.leaves if isinstance(leaf, Channels | Kernel))

    @cached_property
    def channel_groups(self) -> frozenset[int]:
        """The channel groups that this axis depends on."""
        return frozenset(leaf.group for leaf in self.leaves if isinstance(leaf, Channels))

    @cached_property
    def spatial(self) -> bool:
        """Whether this axis depends on the resolution."""
        return any(isinstance(leaf, Spatial) for leaf in self.leaves)

    @cached_property
    def sequential(self) -> bool:
        """Whether this axis depends on the length of token sequences."""
        return any(isinstance(leaf, TokenLength) for leaf in self.leaves)

    @cached_property
    def batched(self) -> bool:
        """Whether this axis depends on the number of samples."""
        return any(isinstance(leaf, BatchAxis) for leaf in self.leaves)


@dataclass(frozen=True, eq=False)
class Fixed(Axis):
    """A size that no config changes."""


@dataclass(frozen=True, eq=False)
class BatchAxis(Axis):
    """The number of samples."""


@dataclass(frozen=True, eq=False)
class Channels(Axis):
    """A channel group: all dimensions that must be cut together. Configs keep a prefix of its `size` channels."""

    group: int


@dataclass(frozen=True, eq=False)
class Spatial(Axis):
    """Height (`index` 0) or width (1) of the network's input."""

    index: int


@dataclass(frozen=True, eq=False)
class TokenLength(Spatial):
    """Length of the network's token sequences. Tensors stored for each position are cut to the first positions."""


@dataclass(frozen=True, eq=False)
class Window(Axis):
    """Positions of a sliding window over `source`; `offset` is padding on both sides - dilation · (kernel - 1)."""

    source: Axis
    stride: int
    offset: int
    ceil: bool

    @property
    def parts(self) -> tuple[Axis, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Scaled(Axis):
    """`source` times `numerator` / `denominator`, which must be an integer: windows of a position axis, resized images."""

    source: Axis
    numerator: int
    denominator: int

    @property
    def parts(self) -> tuple[Axis, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Kernel(Axis):
    """Height and width of one convolution's kernel; SubNets with smaller kernels keep its centre."""

    group: int


@dataclass(frozen=True, eq=False)
class Concat(Axis):
    """Concatenation of `pieces`."""

    pieces: tuple[Axis, ...]

    @property
    def parts(self) -> tuple[Axis, ...]:
        return self.pieces


@dataclass(frozen=True, eq=False)
class Product(Axis):
    """Row-major flattening of `factors`."""

    factors: tuple[Axis, ...]

    @property
    def parts(self) -> tuple[Axis, ...]:
        return self.factors


def window_size(size: int, stride: int, offset: int, ceil: bool) -> int:
    """Number of positions of a window over `size` elements. Source: ONNX, Conv and MaxPool."""
    span = size + offset - 1
    return (-(-span // stride) if ceil else span // stride) + 1


@dataclass(slots=True)
class Sizes:
    """The size of every axis under given group sizes and a given input height and width."""

    groups: Mapping[int, int]
    spatial: tuple[int, ...]
    batch: int
    known: dict[Axis, int] = field(default_factory=dict)

    def __call__(self, axis: Axis) -> int:
        size = self.known.get(axis)
        if size is None:
            size = self.known[axis] = self._evaluate(axis)
        return size

    def shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self(axis) for axis in axes)

    def _evaluate(self, axis: Axis) -> int:
        match axis:
            case BatchAxis():
                return self.batch
            case Channels() | Kernel():
                return self.groups.get(axis.group, axis.size)
            case Scaled():
                return self(axis.source) * axis.numerator // axis.denominator
            case Spatial():
                return self.spatial[axis.index]
            case Window():
                return window_size(self(axis.source), axis.stride, axis.offset, axis.ceil)
            case Concat():
                return sum(self(part) for part in axis.pieces)
            case Product():
                return prod(self(factor) for factor in axis.factors)
            case _:
                return axis.size


def groups_of(axes: Iterable[Axis]) -> frozenset[int]:
    """The channel groups that the axes depend on."""
    return frozenset().union(*(axis.groups for axis in axes))


def spatial_in(axes: Iterable[Axis]) -> bool:
    """Whether any of the axes depends on the resolution."""
    return any(axis.spatial for axis in axes)


def surviving(axis: Axis, channels: Mapping[int, np.ndarray]) -> np.ndarray:
    """Original positions along `axis`, in order, if each group keeps the given original channels in the given order.

    Groups not in `channels` keep all channels. Positions along axes that depend on the resolution are those of the full size.
    """
    match axis:
        case Channels():
            return np.asarray(channels.get(axis.group, np.arange(axis.size)))
        case Concat():
            offsets = np.cumsum([0, *(piece.size for piece in axis.pieces)])
            kept = [surviving(piece, channels) + offset for piece, offset in zip(axis.pieces, offsets, strict=False)]
            return np.concatenate(kept)
        case Product():
            positions = np.zeros(1, dtype=np.int64)
            for factor in axis.factors:
                inner = surviving(factor, channels)
                positions = (positions[:, None] * factor.size + inner[None, :]).reshape(-1)
            return positions
        case _:
            return np.arange(axis.size)

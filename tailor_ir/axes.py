"""Symbolic axes: what a dimension of a tensor means, and so what it is under any config.

While a network is read, dimensions are `Dim`s, joined by union-find as operators demand that they agree. Afterwards
they are frozen into `Axis` expressions: a constant, the batch, a channel group that is cut in one piece, a spatial size
as a function of the input's, a concatenation or a product of axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np


@dataclass(frozen=True, slots=True)
class Fixed:
    """A size that no config changes."""

    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The number of samples."""

    size: int


@dataclass(frozen=True, slots=True)
class Channels:
    """A channel group: all dimensions that must be cut together. Configs keep a prefix of its `size` channels."""

    group: int
    size: int


@dataclass(frozen=True, slots=True)
class Spatial:
    """Height (`index` 0) or width (1) of the network's input."""

    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Window:
    """Number of positions of a sliding window over `source`; `offset` is padding on both sides - dilation · (kernel - 1)."""

    source: "Axis"
    stride: int
    offset: int
    ceil: bool
    size: int


@dataclass(frozen=True, slots=True)
class Concat:
    """`parts` one after the other."""

    parts: tuple["Axis", ...]
    size: int


@dataclass(frozen=True, slots=True)
class Product:
    """Row-major flattening of `factors`."""

    factors: tuple["Axis", ...]
    size: int


Axis = Fixed | Batch | Channels | Spatial | Window | Concat | Product


def window_size(size: int, stride: int, offset: int, ceil: bool) -> int:
    """Positions of a window over `size` elements. Source: ONNX, Conv and MaxPool."""
    span = size + offset - 1
    return (-(-span // stride) if ceil else span // stride) + 1


@dataclass(slots=True)
class Sizes:
    """The size of every axis under one assignment of group sizes and input height and width."""

    groups: Mapping[int, int]
    spatial: tuple[int, ...]
    batch: int
    known: dict[Axis, int] = field(default_factory=dict)

    def __call__(self, axis: Axis) -> int:
        if isinstance(axis, Fixed):
            return axis.size
        if axis not in self.known:
            self.known[axis] = self._evaluate(axis)
        return self.known[axis]

    def shape(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self(axis) for axis in axes)

    def _evaluate(self, axis: Axis) -> int:
        match axis:
            case Batch():
                return self.batch
            case Channels(group, size):
                return self.groups.get(group, size)
            case Spatial(index, _):
                return self.spatial[index]
            case Window(source, stride, offset, ceil):
                return window_size(self(source), stride, offset, ceil)
            case Concat(parts):
                return sum(self(part) for part in parts)
            case Product(factors):
                return prod(self(factor) for factor in factors)
            case Fixed(size):
                return size


def leaves(axis: Axis) -> set[Axis]:
    """The channel groups, spatial inputs and batch that an axis depends on."""
    match axis:
        case Fixed():
            return set()
        case Batch() | Channels() | Spatial():
            return {axis}
        case Window(source):
            return leaves(source)
        case Concat(parts) | Product(parts):
            return set().union(*(leaves(part) for part in parts))


def groups_of(axes: Sequence[Axis]) -> frozenset[int]:
    """The channel groups that the axes depend on."""
    return frozenset(leaf.group for axis in axes for leaf in leaves(axis) if isinstance(leaf, Channels))


def spatial_in(axes: Sequence[Axis]) -> bool:
    """Whether any of the axes depends on the resolution."""
    return any(isinstance(leaf, Spatial) for axis in axes for leaf in leaves(axis))


def surviving(axis: Axis, channels: Mapping[int, np.ndarray]) -> np.ndarray:
    """Original positions along `axis`, in order, when each group keeps (and orders) the given original channels.

    Groups that are not named keep all. Positions along axes that depend on the resolution are those of the full size.
    """
    match axis:
        case Channels(group, size):
            return np.asarray(channels.get(group, np.arange(size)))
        case Concat(parts):
            offsets = np.cumsum([0, *(part.size for part in parts)])
            pieces = [surviving(part, channels) + offset for part, offset in zip(parts, offsets, strict=False)]
            return np.concatenate(pieces)
        case Product(factors):
            positions = np.zeros(1, dtype=np.int64)
            for factor in factors:
                inner = surviving(factor, channels)
                positions = (positions[:, None] * factor.size + inner[None, :]).reshape(-1)
            return positions
        case _:
            return np.arange(axis.size)

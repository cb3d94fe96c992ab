"""The weights of a SubNet are views of the SuperNet's: prefixes of channels, and positions resampled to the resolution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from tailor_ir import axes as ax
from tailor_ir.graph import Graph, Tensors

if TYPE_CHECKING:
    from tailor_ir.propagate import AxisMap

Cut = Callable[[torch.Tensor], torch.Tensor]


def can_resample(axes: Sequence[ax.Axis]) -> bool:
    """Whether every axis that depends on the resolution is a position axis, a product, or a concatenation of such."""
    return all(_resamplable(axis) for axis in axes)


def _resamplable(axis: ax.Axis) -> bool:
    match axis:
        case ax.Concat() | ax.Product():
            return all(_resamplable(part) for part in axis.parts)
        case _:
            return True


def make_cut(axes: Sequence[ax.Axis], sizes: ax.Sizes, *, labels: bool = False) -> Cut | None:
    """How a stored tensor is cut under a config; None when it is used whole."""
    steps = _resamplers(axes, sizes, labels)
    for dim, axis in enumerate(axes):
        if axis.groups and sizes(axis) != axis.size and not axis.spatial:
            steps.append(_selector(dim, axis, sizes))
    return _chained(steps)


def make_resampler(axes: Sequence[ax.Axis], sizes: ax.Sizes, *, labels: bool = False) -> Cut | None:
    """How entries for positions follow the resolution; None when they stay. `labels`: from the nearest position."""
    return _chained(_resamplers(axes, sizes, labels))


def is_labels(tensor: torch.Tensor) -> bool:
    """Whether a constant's values tell cases apart (a mask), so that values between them mean nothing."""
    return not tensor.is_floating_point() or len(tensor.unique()) <= 2


def _resamplers(axes: Sequence[ax.Axis], sizes: ax.Sizes, labels: bool) -> list[Cut]:
    changed = any(sizes(leaf) != leaf.size for axis in axes for leaf in axis.leaves if isinstance(leaf, ax.Spatial))
    steps = [_resampler(dim, axis, sizes, labels) for dim, axis in enumerate(axes) if axis.spatial] if changed else []
    return [step for step in steps if step is not None]


def _chained(steps: list[Cut]) -> Cut | None:
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else _Chain(tuple(steps))


@dataclass(frozen=True, slots=True)
class _Chain:
    steps: tuple[Cut, ...]

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            tensor = step(tensor)
        return tensor


@dataclass(frozen=True, slots=True)
class _Prefix:
    dim: int
    length: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(self.dim, 0, self.length)


@dataclass(frozen=True, slots=True, eq=False)
class _Positions:
    dim: int
    positions: torch.Tensor

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.index_select(self.dim, self.positions.to(tensor.device))


@dataclass(frozen=True, slots=True)
class _Centre:
    dim: int
    length: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(self.dim, (tensor.shape[self.dim] - self.length) // 2, self.length)


def _selector(dim: int, axis: ax.Axis, sizes: ax.Sizes) -> Cut:
    if isinstance(axis, ax.Channels):
        return _Prefix(dim, sizes(axis))
    if isinstance(axis, ax.Kernel):
        return _Centre(dim, sizes(axis))
    kept = {leaf.group: np.arange(sizes(leaf)) for leaf in axis.leaves if isinstance(leaf, ax.Channels)}
    return _Positions(dim, torch.from_numpy(ax.surviving(axis, kept)))


@dataclass(frozen=True, slots=True, eq=False)
class _Resample:
    """Linear map along one dimension."""

    dim: int
    matrix: torch.Tensor  # (positions wanted, positions stored)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix.to(tensor)
        return torch.movedim(torch.movedim(tensor, self.dim, -1) @ matrix.T, -1, self.dim)


def _resampler(dim: int, axis: ax.Axis, sizes: ax.Sizes, labels: bool) -> Cut | None:
    """Bicubic interpolation of entries for positions. Source: DeiT (ICML 2021), positional embeddings at other resolutions."""
    matrix = _resampling(axis, sizes, labels)
    if matrix is None:
        return None
    if labels:
        return _Positions(dim, matrix.argmax(1))
    return _Resample(dim, matrix)


def _resampling(axis: ax.Axis, sizes: ax.Sizes, labels: bool) -> torch.Tensor | None:
    """The matrix (wanted, stored) that resamples an axis; None when its size stays."""
    match axis:
        case ax.Product():
            parts = [_resampling(part, sizes, labels) for part in axis.factors]
            if all(part is None for part in parts):
                return None
            matrix = torch.ones(1, 1, dtype=torch.float64)
            for factor, part in zip(axis.factors, parts, strict=True):
                matrix = torch.kron(matrix, torch.eye(factor.size, dtype=torch.float64) if part is None else part)
            return matrix
        case ax.Concat():
            parts = [_resampling(piece, sizes, labels) for piece in axis.pieces]
            if all(part is None for part in parts):
                return None
            blocks = zip(axis.pieces, parts, strict=True)
            return torch.block_diag(*(torch.eye(p.size, dtype=torch.float64) if m is None else m for p, m in blocks))
        case _:
            return None if sizes(axis) == axis.size else _interpolation(axis.size, sizes(axis), labels)


def _interpolation(stored: int, wanted: int, labels: bool) -> torch.Tensor:
    """(wanted, stored) weights of bicubic (nearest for labels) interpolation between positions."""
    each = torch.eye(stored, dtype=torch.float64)[None, :, :, None]  # one channel for each stored position
    if labels:
        taken = F.interpolate(each, size=(wanted, 1), mode="nearest-exact")
    else:
        taken = F.interpolate(each, size=(wanted, 1), mode="bicubic", align_corners=False)
    return taken[0, :, :, 0].T.contiguous()


def importance(graph: Graph, tensors: Tensors, axis_map: "AxisMap", group: int) -> np.ndarray:
    """L1 norm of all weights (two dimensions or more) that each channel of a group takes part in."""
    score = np.zeros(axis_map.groups[group])
    for name in graph.parameters:
        axes = axis_map.axes.get(name, ())
        if len(axes) < 2:
            continue
        for dim, axis in enumerate(axes):
            if isinstance(axis, ax.Channels) and axis.group == group:
                others = [d for d in range(len(axes)) if d != dim]
                score += tensors[name].abs().double().sum(others).numpy()
    return score


def sort_channels(graph: Graph, tensors: Tensors, axis_map: "AxisMap", groups: Sequence[int]) -> Tensors:
    """The same function with the channels of `groups` in falling importance, in every tensor that has them."""
    order = {group: np.argsort(-importance(graph, tensors, axis_map, group), kind="stable") for group in groups}
    result: Tensors = {}
    for name, tensor in tensors.items():
        for dim, axis in enumerate(axis_map.axes[name]):
            if axis.groups & order.keys():
                positions = torch.from_numpy(ax.surviving(axis, order))
                tensor = tensor.index_select(dim, positions)
        result[name] = tensor
    return result

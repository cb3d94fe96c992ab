"""The weights of a SubNet are views of the SuperNet's: prefixes of channels, and positions resampled to the resolution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from tailor_ir import axes as ax
from tailor_ir.graph import Graph, Tensors
from tailor_ir.propagate import AxisMap

Cut = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where a tensor has one entry for each position: dimension `dim`, after `before` and before `after` other entries."""

    dim: int
    before: int
    after: int
    height: ax.Axis
    width: ax.Axis
    separate: bool  # height and width are two dimensions, `dim` and `dim + 1`


def find_grid(axes: Sequence[ax.Axis]) -> Grid | None:
    """The position grid of a parameter; None when its spatial axes have another form."""
    spatial = [i for i, axis in enumerate(axes) if axis.spatial]
    if len(spatial) == 2 and spatial[1] == spatial[0] + 1:
        return Grid(spatial[0], 0, 0, axes[spatial[0]], axes[spatial[1]], separate=True)
    if len(spatial) != 1:
        return None
    axis = axes[spatial[0]]
    parts = axis.pieces if isinstance(axis, ax.Concat) else (axis,)
    grids = [i for i, part in enumerate(parts) if part.spatial]
    if len(grids) != 1 or any(not isinstance(p, ax.Fixed) for i, p in enumerate(parts) if i != grids[0]):
        return None
    product = parts[grids[0]]
    if not isinstance(product, ax.Product) or len(product.factors) != 2:
        return None
    before = sum(part.size for part in parts[: grids[0]])
    after = sum(part.size for part in parts[grids[0] + 1 :])
    return Grid(spatial[0], before, after, *product.factors, separate=False)


def make_cut(axes: Sequence[ax.Axis], sizes: ax.Sizes) -> Cut | None:
    """How a tensor is cut under a config; None when it is used whole."""
    steps: list[Cut] = []
    grid = find_grid(axes) if ax.spatial_in(axes) else None
    if grid is not None and (sizes(grid.height), sizes(grid.width)) != (grid.height.size, grid.width.size):
        steps.append(_resampler(grid, sizes))
    for dim, axis in enumerate(axes):
        if axis.groups and sizes(axis) != axis.size:
            steps.append(_selector(dim, axis, sizes))
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


def _selector(dim: int, axis: ax.Axis, sizes: ax.Sizes) -> Cut:
    if isinstance(axis, ax.Channels):
        return _Prefix(dim, sizes(axis))
    kept = {leaf.group: np.arange(sizes(leaf)) for leaf in axis.leaves if isinstance(leaf, ax.Channels)}
    return _Positions(dim, torch.from_numpy(ax.surviving(axis, kept)))


def _resampler(grid: Grid, sizes: ax.Sizes) -> Cut:
    """Bicubic interpolation of a position grid. Source: DeiT (ICML 2021), positional embeddings at other resolutions."""
    target = (sizes(grid.height), sizes(grid.width))
    base = (grid.height.size, grid.width.size)

    def resample(tensor: torch.Tensor) -> torch.Tensor:
        length = tensor.shape[grid.dim] - grid.before - grid.after
        if grid.separate:
            body = tensor.flatten(grid.dim, grid.dim + 1)
        else:
            body = tensor.narrow(grid.dim, grid.before, length)
        moved = body.movedim(grid.dim, -1)
        image = moved.reshape(1, -1, *base)
        scaled = F.interpolate(image, size=target, mode="bicubic", align_corners=False)
        flat = scaled.reshape(*moved.shape[:-1], target[0] * target[1]).movedim(-1, grid.dim)
        if grid.separate:
            return flat.unflatten(grid.dim, target)
        before = tensor.narrow(grid.dim, 0, grid.before)
        after = tensor.narrow(grid.dim, grid.before + length, grid.after)
        return torch.cat((before, flat, after), grid.dim)

    return resample


def importance(graph: Graph, tensors: Tensors, axis_map: AxisMap, group: int) -> np.ndarray:
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


def sort_channels(graph: Graph, tensors: Tensors, axis_map: AxisMap, groups: Sequence[int]) -> Tensors:
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

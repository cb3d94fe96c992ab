"""Operators that read or write at computed positions: largest entries, entries by index, images by coordinates."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim, from_begin
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, order_along

GRID_MODES = ("bilinear", "nearest", "bicubic")
REDUCTIONS = ("none", "add")


class TopK(nn.Module):
    """The `count` largest (or smallest) entries along an axis, and their positions; equal entries in order, as in ONNX."""

    def __init__(self, count: int, axis: int, largest: bool) -> None:
        super().__init__()
        self.count, self.axis, self.largest = count, axis, largest

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, positions = torch.sort(x, dim=self.axis, descending=self.largest, stable=True)
        return values.narrow(self.axis, 0, self.count), positions.narrow(self.axis, 0, self.count)


class GatherEntries(nn.Module):
    """For each entry, x at `positions` along an axis and at the entry's own place along all other axes."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, self.axis, from_begin(positions, x.shape[self.axis]))


class ScatterEntries(nn.Module):
    """x with `values` written (or added) at `positions` along an axis and at the entry's own place along all other axes."""

    def __init__(self, axis: int, add: bool) -> None:
        super().__init__()
        self.axis, self.add = axis, add

    def forward(self, x: torch.Tensor, positions: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        positions = from_begin(positions, x.shape[self.axis])
        if self.add:
            return torch.scatter_add(x, self.axis, positions, values)
        return torch.scatter(x, self.axis, positions, values)


class GridSample(nn.Module):
    """x (B, C, H, W) at the coordinates of a grid (B, H', W', 2), as (B, C, H', W')."""

    def __init__(self, mode: str, padding: str, corners: bool) -> None:
        super().__init__()
        self.mode, self.padding, self.corners = mode, padding, corners

    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, self.mode, self.padding, self.corners)


def _axis(node: Node, rank: int, default: int) -> int:
    return node.int("axis", default) % rank


def _largest_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, sizes = p.of(node.inputs[0]), p.output_sizes(node)
    axis = _axis(node, len(x), -1)
    p.constant(node, 1)
    p.put_together((x[axis],), node)
    p.freeze((x[axis],), node, "takes the largest of the axis")
    dims = (*x[:axis], p.pool.fixed(sizes[axis]), *x[axis + 1 :])
    return dims, dims


def _beside(node: Node, p: Propagation, axis: int, x: Sequence[Dim], positions: Sequence[Dim]) -> None:
    """Join the dimensions of x and positions along all axes but one, because entries keep their place there."""
    p.freeze((x[axis],), node, "is looked up by position")
    for index, (own, other) in enumerate(zip(x, positions, strict=True)):
        if index != axis and own.size == other.size:
            p.unify(own, other, node)
        elif index != axis:
            p.freeze((own, other), node, "covers a part of the axis")


def _gather_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, positions = (p.of(name) for name in node.inputs)
    _beside(node, p, _axis(node, len(x), 0), x, positions)
    return (positions,)


def _scatter_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, positions, values = (p.of(name) for name in node.inputs)
    if node.attribute("reduction", "none") not in REDUCTIONS:
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': reduction '{node.attribute('reduction')}'; "
            f"allowed: {', '.join(REDUCTIONS)}, or all at constant positions; compare the positions with a range, and reduce "
            "over torch.where"
        )
    _beside(node, p, _axis(node, len(x), 0), x, positions)
    for own, other in zip(positions, values, strict=True):
        p.unify(own, other, node)
    return (x,)


def _grid_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, grid = (p.of(name) for name in node.inputs)
    if len(x) != 4 or str(node.attribute("mode", "bilinear")) not in GRID_MODES:
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': {len(x) - 2}-D, mode '{node.attribute('mode')}'; "
            f"allowed: images, {', '.join(GRID_MODES)}"
        )
    p.unify(x[0], grid[0], node)
    p.freeze(grid[3:], node, "coordinates")
    return ((x[0], x[1], grid[1], grid[2]),)


def _coordinates(node: Node, p: Propagation) -> Dims:
    """Positions of the image, and the axis of coordinates."""
    x, grid = (p.of(name) for name in node.inputs)
    return (*x[2:], *grid[3:])


def _lower_largest(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    axis = _axis(node, len(shapes.full_inputs[0]), -1)
    return TopK(shapes.outputs[0][axis], axis, bool(node.int("largest", 1)))


def _lower_gather(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return GatherEntries(_axis(node, len(shapes.full_inputs[0]), 0))


def _lower_scatter(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return ScatterEntries(_axis(node, len(shapes.full_inputs[0]), 0), node.attribute("reduction", "none") == "add")


def _lower_grid(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    mode = str(node.attribute("mode", "bilinear"))
    return GridSample(mode, str(node.attribute("padding_mode", "zeros")), bool(node.int("align_corners", 0)))


OPERATORS = (
    Operator(names=("TopK",), axes=_largest_axes, order=order_along(-1), lower=_lower_largest, operands=1),
    Operator(names=("GatherElements",), axes=_gather_axes, order=order_along(0), lower=_lower_gather),
    Operator(names=("ScatterElements",), axes=_scatter_axes, order=order_along(0), lower=_lower_scatter),
    Operator(names=("GridSample",), axes=_grid_axes, order=_coordinates, lower=_lower_grid),
)

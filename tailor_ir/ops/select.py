"""Operators that read or write at computed positions: largest entries, entries by index, images by coordinates."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim, from_begin
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation, computed_by, order_along

GRID_MODES = ("bilinear", "nearest", "bicubic")
REDUCTIONS = ("none", "add")


def _largest(x: torch.Tensor, *, count: int, axis: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest (or smallest) entries along an axis, and their positions; equal entries in order, as in ONNX."""
    values, positions = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), positions.narrow(axis, 0, count)


def _gathered(x: torch.Tensor, positions: torch.Tensor, *, axis: int) -> torch.Tensor:
    """For each entry, x at `positions` along an axis and at the entry's own place along all other axes."""
    return torch.gather(x, axis, from_begin(positions, x.shape[axis]))


def _scattered(x: torch.Tensor, positions: torch.Tensor, values: torch.Tensor, *, axis: int, add: bool) -> torch.Tensor:
    """x with `values` written (or added) at `positions` along an axis and at the entry's own place along all other axes."""
    positions = from_begin(positions, x.shape[axis])
    return torch.scatter_add(x, axis, positions, values) if add else torch.scatter(x, axis, positions, values)


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
            f"{node.place}: reduction '{node.attribute('reduction')}'; "
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
            f"{node.place}: {len(x) - 2}-D, mode '{node.attribute('mode')}'; allowed: images, {', '.join(GRID_MODES)}"
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
    return Function(_largest, count=shapes.outputs[0][axis], axis=axis, largest=bool(node.int("largest", 1)))


def _grid_settings(node: Node) -> dict[str, object]:
    mode, padding = str(node.attribute("mode", "bilinear")), str(node.attribute("padding_mode", "zeros"))
    return {"mode": mode, "padding_mode": padding, "align_corners": bool(node.int("align_corners", 0))}


GATHER = computed_by(_gathered, lambda node: {"axis": node.int("axis", 0)})
SCATTER = computed_by(
    _scattered, lambda node: {"axis": node.int("axis", 0), "add": node.attribute("reduction", "none") == "add"}
)
OPERATORS = (
    Operator(names=("TopK",), axes=_largest_axes, order=order_along(-1), lower=_lower_largest, operands=1),
    Operator(names=("GatherElements",), axes=_gather_axes, order=order_along(0), lower=GATHER),
    Operator(names=("ScatterElements",), axes=_scatter_axes, order=order_along(0), lower=SCATTER),
    Operator(
        names=("GridSample",), axes=_grid_axes, order=_coordinates, lower=computed_by(F.grid_sample, _grid_settings)
    ),
)

"""Pooling and reductions."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.ops.conv import PADDINGS, explicit_pads, outer_pads, window_dims
from tailor_ir.ops.registry import (
    Dims,
    Function,
    NodeShapes,
    Operator,
    Propagation,
    computed_by,
    no_order,
    order_along,
    order_of_positions,
)

UNPOOL = "MaxUnpool"
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGES: dict[int, Callable[..., torch.Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
AVERAGE_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


def _padded_average(
    x: torch.Tensor, *, pads: tuple[int, ...], window: tuple[tuple[int, ...], tuple[int, ...]], ceil: bool, counts: bool
) -> torch.Tensor:
    """Average pooling with padding that differs between begin and end, or is wider than half the kernel.

    window: kernel and strides. counts: whether padding counts as entries.
    """

    def average(values: torch.Tensor) -> torch.Tensor:
        return AVERAGES[len(window[0])](F.pad(values, pads), *window, 0, ceil)

    return average(x) if counts else average(x) / average(torch.ones_like(x[:1, :1]))


def _pooled(x: torch.Tensor, *, op: str, power: int) -> torch.Tensor:
    """One number per channel of x (B, C, *S): mean, maximum, or the norm of this power."""
    axes = tuple(range(2, x.dim()))
    if op == "GlobalAveragePool":
        return x.mean(axes, keepdim=True)
    return x.amax(axes, keepdim=True) if op == "GlobalMaxPool" else torch.linalg.vector_norm(x, power, axes, True)


def _product(x: torch.Tensor, axes: Sequence[int], keepdim: bool) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
    "ReduceProd": _product,
    "ReduceL1": lambda x, axes, keepdim: x.abs().sum(axes, keepdim=keepdim),
    "ReduceL2": lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim=keepdim),
    "ReduceSumSquare": lambda x, axes, keepdim: x.square().sum(axes, keepdim=keepdim),
    "ReduceLogSum": lambda x, axes, keepdim: x.sum(axes, keepdim=keepdim).log(),
    "ReduceLogSumExp": torch.logsumexp,
}


def _reduce(x: torch.Tensor, *, op: str, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    return REDUCTIONS[op](x, axes, keepdim=keep)


def _argument(x: torch.Tensor, *, largest: bool, axis: int, keep: bool, last: bool) -> torch.Tensor:
    """Position of the largest or smallest entry; among equal entries, the first or the last wins."""
    function = torch.argmax if largest else torch.argmin
    if last:
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keep)
    return function(x, axis, keep)


def _serves_unpooling(graph: Graph, positions: str) -> bool:
    """Whether only unpooling reads the positions; other readers would notice that torch and ONNX number them differently."""
    readers = graph.consumers().get(positions, [])
    return positions not in graph.outputs and all(reader.op == UNPOOL for reader in readers)


def _pool_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    if len(node.outputs) > 1 and not _serves_unpooling(p.graph, node.outputs[1]):
        raise ImportFailed(f"{node.place}: gives positions as well; allowed: values, or unpooling")
    if len(x) - 2 not in MAX_POOLS:
        raise ImportFailed(f"{node.place}: {len(x) - 2}-D; allowed: 1-D, 2-D and 3-D")
    spatial = window_dims(node, p, x[2:], node.ints("kernel_shape"), bool(node.int("ceil_mode", 0)))
    return ((x[0], x[1], *spatial),) * len(node.outputs)


def _lower_pool(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    kernel = node.ints("kernel_shape")
    rank = len(kernel)
    strides, pads = node.ints("strides", (1,) * rank), explicit_pads(node, rank)
    dilations, ceil = node.ints("dilations", (1,) * rank), bool(node.int("ceil_mode", 0))
    plain = pads[:rank] == pads[rank:] and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    if node.op == "MaxPool":
        positions = len(node.outputs) > 1
        if positions and not plain:
            raise ImportFailed(f"{node.place}: positions with pads {pads}; allowed: equal ones at both sides")
        pool = MAX_POOLS[rank](kernel, strides, pads[:rank] if plain else 0, dilations, positions, ceil)
        return pool if plain else nn.Sequential(PADDINGS[rank](outer_pads(pads), float("-inf")), pool)
    count_padding = bool(node.int("count_include_pad", 0))
    if plain:
        return AVERAGE_POOLS[rank](kernel, strides, pads[:rank], ceil, count_padding)
    window = (kernel, strides)
    return Function(_padded_average, pads=outer_pads(pads), window=window, ceil=ceil, counts=count_padding)


def _pool_attributes(node: Node, shapes: NodeShapes) -> dict[str, Attribute]:
    """Crop sides of a kernel that exceed the padded map.

    Rounding up allows such kernels in SubNets of a small resolution. Cropping does not change the result, but runtimes refuse
    larger kernels (OpenVINO) or read beyond the map (ncnn).
    """
    kernel = node.ints("kernel_shape")
    rank = len(kernel)
    if not node.int("ceil_mode", 0) or any(step != 1 for step in node.ints("dilations", (1,) * rank)):
        return {}
    pads, sizes = explicit_pads(node, rank), shapes.inputs[0][2:]
    padded = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(sizes)]
    within = tuple(map(min, kernel, padded))
    return {} if within == kernel else {"kernel_shape": within}


def _unpooled(x: torch.Tensor, positions: torch.Tensor, *, sizes: tuple[int, ...]) -> torch.Tensor:
    """Values (B, C, *S) written to positions of a flattened map of `sizes` that is zero elsewhere."""
    empty = x.new_zeros((*x.shape[:2], prod(sizes)))
    return empty.scatter(2, positions.flatten(2), x.flatten(2)).unflatten(2, sizes)


def _unpool_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of the result: positions are numbered in the pooled map, so the result has its axes."""
    x, positions = p.of(node.inputs[0]), p.of(node.inputs[1])
    for own, other in zip(x, positions, strict=True):
        p.unify(own, other, node)
    pool = p.graph.producers().get(node.inputs[1])
    pooled = p.of(pool.inputs[0]) if pool is not None and pool.op == "MaxPool" else ()
    if tuple(dim.size for dim in pooled[2:]) != p.output_sizes(node)[2:]:
        raise ImportFailed(
            f"{node.place}: positions in a map of another size; allowed: those of a MaxPool of a map "
            f"of {p.output_sizes(node)[2:]}"
        )
    return ((x[0], x[1], *pooled[2:]),)


def _global_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    return ((x[0], x[1], *(p.pool.fixed(1) for _ in x[2:])),)


def _reduced(node: Node, axes: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The reduced axes, counted from the beginning."""
    found = node.ints("axes", tuple(range(rank))) if axes is None else axes
    return tuple(sorted({int(a) % rank for a in found}))


def _reduce_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    given = p.constant(node, 1).reshape(-1).tolist() if len(node.inputs) > 1 and node.inputs[1] else None
    reduced = _reduced(node, given, len(x))
    p.put_together([x[position] for position in reduced], node)
    return (_without(node, p, x, reduced),)


def _without(node: Node, p: Propagation, x: Dims, reduced: Sequence[int]) -> Dims:
    keep = bool(node.int("keepdims", 1))
    return tuple(p.pool.fixed(1) if at in reduced else dim for at, dim in enumerate(x) if keep or at not in reduced)


def _lower_reduce(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    given = tensors[node.inputs[1]].reshape(-1).tolist() if len(node.inputs) > 1 and node.inputs[1] else None
    axes = _reduced(node, given, len(shapes.inputs[0]))
    return Function(_reduce, op=node.op, axes=axes, keep=bool(node.int("keepdims", 1)))


def _argument_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    axis = node.int("axis", 0) % len(x)
    p.put_together((x[axis],), node)
    p.freeze((x[axis],), node, "gives positions along the axis")
    return (_without(node, p, x, (axis,)),)


def _argument_settings(node: Node) -> dict[str, object]:
    keep, last = bool(node.int("keepdims", 1)), bool(node.int("select_last_index", 0))
    return {"largest": node.op == "ArgMax", "axis": node.int("axis", 0), "keep": keep, "last": last}


GLOBAL = computed_by(_pooled, lambda node: {"op": node.op, "power": node.int("p", 2)})
ARGUMENT = computed_by(_argument, _argument_settings)
OPERATORS = (
    Operator(
        names=("AveragePool", "MaxPool"),
        axes=_pool_axes,
        order=order_of_positions,
        lower=_lower_pool,
        attributes=_pool_attributes,
    ),
    Operator(
        names=(UNPOOL,),
        axes=_unpool_axes,
        order=order_of_positions,
        lower=lambda node, shapes, _: Function(_unpooled, sizes=shapes.outputs[0][2:]),
        operands=2,
        constants=lambda node, shapes, _: {2: np.asarray(shapes.outputs[0], np.int64)},
    ),
    Operator(
        names=("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), axes=_global_axes, order=no_order, lower=GLOBAL
    ),
    Operator(names=tuple(REDUCTIONS), axes=_reduce_axes, order=no_order, lower=_lower_reduce, operands=1),
    Operator(names=("ArgMax", "ArgMin"), axes=_argument_axes, order=order_along(0), lower=ARGUMENT, operands=1),
)

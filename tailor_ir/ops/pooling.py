"""Pooling and reductions."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import Dim
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.ops.conv import explicit_pads, window_dims
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, no_order, order_along, order_of_positions

UNPOOL = "MaxUnpool"
MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGES: dict[int, Callable[..., torch.Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
AVERAGE_POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}


class PaddedMaxPool(nn.Module):
    """Max pooling with padding that differs between begin and end, or is wider than half the kernel."""

    def __init__(self, pads: tuple[int, ...], pool: nn.Module) -> None:
        super().__init__()
        self.pads, self.pool = pads, pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(F.pad(x, self.pads, value=float("-inf")))


class PaddedAveragePool(nn.Module):
    """Average pooling with padding that differs between begin and end, or is wider than half the kernel."""

    def __init__(
        self, pads: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], ceil: bool, count_padding: bool
    ) -> None:
        super().__init__()
        self.pads, self.kernel, self.strides, self.ceil, self.count_padding = pads, kernel, strides, ceil, count_padding

    def _average(self, x: torch.Tensor) -> torch.Tensor:
        return AVERAGES[len(self.kernel)](F.pad(x, self.pads), self.kernel, self.strides, 0, self.ceil)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        average = self._average(x)
        return average if self.count_padding else average / self._average(torch.ones_like(x[:1, :1]))


class GlobalPool(nn.Module):
    """One number per channel of x (B, C, *S): mean, maximum, or the norm of power `power`."""

    def __init__(self, op: str, power: int = 2) -> None:
        super().__init__()
        self.op, self.power = op, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(2, x.dim()))
        if self.op == "GlobalAveragePool":
            return x.mean(axes, keepdim=True)
        if self.op == "GlobalMaxPool":
            return x.amax(axes, keepdim=True)
        return torch.linalg.vector_norm(x, self.power, axes, keepdim=True)


def _sum_of_logs(x: torch.Tensor, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    return x.sum(axes, keepdim=keepdim).log()


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
    "ReduceLogSum": _sum_of_logs,
    "ReduceLogSumExp": torch.logsumexp,
}


class Reduction(nn.Module):
    """One of ONNX's Reduce operators over given axes."""

    def __init__(self, op: str, axes: tuple[int, ...], keep: bool) -> None:
        super().__init__()
        self.function, self.axes, self.keep = REDUCTIONS[op], axes, keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.axes, keepdim=self.keep)


class ArgumentOfExtreme(nn.Module):
    """ArgMax and ArgMin; among equal entries, the first or the last wins."""

    def __init__(self, op: str, axis: int, keep: bool, last: bool) -> None:
        super().__init__()
        self.function = torch.argmax if op == "ArgMax" else torch.argmin
        self.axis, self.keep, self.last = axis, keep, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.last:
            return x.shape[self.axis] - 1 - self.function(x.flip(self.axis), self.axis, self.keep)
        return self.function(x, self.axis, self.keep)


def _serves_unpooling(graph: Graph, positions: str) -> bool:
    """Whether only unpooling reads the positions; other readers would notice that torch and ONNX number them differently."""
    readers = graph.consumers().get(positions, [])
    return positions not in graph.outputs and all(reader.op == UNPOOL for reader in readers)


def _pool_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    if len(node.outputs) > 1 and not _serves_unpooling(p.graph, node.outputs[1]):
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': gives positions as well; allowed: values, or unpooling"
        )
    if len(x) - 2 not in MAX_POOLS:
        raise ImportFailed(f"operator '{node.op}' at '{node.name}': {len(x) - 2}-D; allowed: 1-D, 2-D and 3-D")
    spatial = window_dims(node, p, x[2:], node.ints("kernel_shape"), bool(node.int("ceil_mode", 0)))
    return ((x[0], x[1], *spatial),) * len(node.outputs)


def _lower_pool(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    kernel = node.ints("kernel_shape")
    rank = len(kernel)
    strides, pads = node.ints("strides", (1,) * rank), explicit_pads(node, rank)
    dilations, ceil = node.ints("dilations", (1,) * rank), bool(node.int("ceil_mode", 0))
    plain = pads[:rank] == pads[rank:] and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    # F.pad lists the last axis first, its begin before its end
    outer = tuple(v for i in reversed(range(rank)) for v in (pads[i], pads[i + rank]))
    if node.op == "MaxPool":
        positions = len(node.outputs) > 1
        if positions and not plain:
            raise ImportFailed(
                f"operator 'MaxPool' at '{node.name}': positions with pads {pads}; allowed: equal ones at both sides"
            )
        pool = MAX_POOLS[rank](kernel, strides, pads[:rank] if plain else 0, dilations, positions, ceil)
        return pool if plain else PaddedMaxPool(outer, pool)
    count_padding = bool(node.int("count_include_pad", 0))
    if plain:
        return AVERAGE_POOLS[rank](kernel, strides, pads[:rank], ceil, count_padding)
    return PaddedAveragePool(outer, kernel, strides, ceil, count_padding)


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


class Unpool(nn.Module):
    """Write values (B, C, *S) to positions of a flattened map of `sizes` that is zero elsewhere."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        empty = x.new_zeros((*x.shape[:2], prod(self.sizes)))
        return empty.scatter(2, positions.flatten(2), x.flatten(2)).unflatten(2, self.sizes)


def _unpool_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of the result: positions are numbered in the pooled map, so the result has its axes."""
    x, positions = p.of(node.inputs[0]), p.of(node.inputs[1])
    for own, other in zip(x, positions, strict=True):
        p.unify(own, other, node)
    pool = p.graph.producers().get(node.inputs[1])
    pooled = p.of(pool.inputs[0]) if pool is not None and pool.op == "MaxPool" else ()
    if tuple(dim.size for dim in pooled[2:]) != p.output_sizes(node)[2:]:
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': positions in a map of another size; allowed: those of a MaxPool of a map "
            f"of {p.output_sizes(node)[2:]}"
        )
    return ((x[0], x[1], *pooled[2:]),)


def _lower_unpool(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Unpool(shapes.outputs[0][2:])


def _unpool_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    return {2: np.asarray(shapes.outputs[0], np.int64)}


def _global_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    return ((x[0], x[1], *(p.pool.fixed(1) for _ in x[2:])),)


def _lower_global(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return GlobalPool(node.op, node.int("p", 2))


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
    result: list[Dim] = []
    for position, dim in enumerate(x):
        if position not in reduced:
            result.append(dim)
        elif keep:
            result.append(p.pool.fixed(1))
    return tuple(result)


def _lower_reduce(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    given = tensors[node.inputs[1]].reshape(-1).tolist() if len(node.inputs) > 1 and node.inputs[1] else None
    axes = _reduced(node, given, len(shapes.inputs[0]))
    return Reduction(node.op, axes, bool(node.int("keepdims", 1)))


def _argument_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    axis = node.int("axis", 0) % len(x)
    p.put_together((x[axis],), node)
    p.freeze((x[axis],), node, "gives positions along the axis")
    return (_without(node, p, x, (axis,)),)


def _lower_argument(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    last = bool(node.int("select_last_index", 0))
    return ArgumentOfExtreme(node.op, node.int("axis", 0), bool(node.int("keepdims", 1)), last)


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
        lower=_lower_unpool,
        operands=2,
        constants=_unpool_constants,
    ),
    Operator(
        names=("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
        axes=_global_axes,
        order=no_order,
        lower=_lower_global,
    ),
    Operator(names=tuple(REDUCTIONS), axes=_reduce_axes, order=no_order, lower=_lower_reduce, operands=1),
    Operator(names=("ArgMax", "ArgMin"), axes=_argument_axes, order=order_along(0), lower=_lower_argument, operands=1),
)

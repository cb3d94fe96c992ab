"""Pooling and reductions."""

from tailor_ir.dims import Dim
from tailor_ir.graph import Node
from tailor_ir.ops.conv import window_dims
from tailor_ir.ops.registry import Dims, Operator, Propagation


def _pool_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    spatial = window_dims(node, p, x[2:], node.ints("kernel_shape"), bool(node.int("ceil_mode", 0)))
    return ((x[0], x[1], *spatial),)


def _global_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    return ((x[0], x[1], *(p.pool.fixed(1) for _ in x[2:])),)


def _reduce_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    if len(node.inputs) > 1 and node.inputs[1]:
        axes = tuple(int(a) for a in p.constant(node, 1))
    else:
        axes = node.ints("axes", tuple(range(len(x))))
    reduced = {a % len(x) for a in axes}
    keep = bool(node.int("keepdims", 1))
    result: list[Dim] = []
    for position, dim in enumerate(x):
        if position not in reduced:
            result.append(dim)
        elif keep:
            result.append(p.pool.fixed(1))
    return (tuple(result),)


OPERATORS = (
    Operator(names=("AveragePool", "MaxPool"), axes=_pool_axes),
    Operator(names=("GlobalAveragePool", "GlobalMaxPool"), axes=_global_axes),
    Operator(names=("ReduceMean", "ReduceMax", "ReduceSum"), axes=_reduce_axes, operands=1),
)

"""Matrix products: `Linear` (a weight, the IR's own) and MatMul (two computed operands, or an untransposed weight)."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation


class LinearMap(nn.Module):
    """x (*, I) times weight (O, I) transposed, plus bias (O), both given with each call."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return F.linear(x, weight, bias)


class MatrixProduct(nn.Module):
    """torch.matmul as a module."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.matmul(a, b)


def _linear_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, weight = p.of(node.inputs[0]), p.of(node.inputs[1])
    p.unify(x[-1], weight[1], node)
    if len(node.inputs) > 2:
        p.unify(p.of(node.inputs[2])[0], weight[0], node)
    return ((*x[:-1], weight[0]),)


def _matmul_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    a, b = p.of(node.inputs[0]), p.of(node.inputs[1])
    if len(a) < 2 or len(b) < 2:
        raise ImportFailed(f"operator 'MatMul' at '{node.name}': a vector operand; allowed: matrices")
    p.unify(a[-1], b[-2], node)
    return ((*p.broadcast(node, (a[:-2], b[:-2])), a[-2], b[-1]),) if len(a) + len(b) > 4 else ((a[-2], b[-1]),)


def _linear_layer(node: Node, shapes: NodeShapes, parameters: Sequence[torch.Tensor]) -> nn.Module:
    weight = parameters[0]
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=len(parameters) > 1)
    layer.weight.data.copy_(weight)
    if layer.bias is not None:
        layer.bias.data.copy_(parameters[1])
    return layer


def _lower_linear(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LinearMap()


def _lower_matmul(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return MatrixProduct()


OPERATORS = (
    Operator(names=("Linear",), axes=_linear_axes, lower=_lower_linear, layer=_linear_layer),
    Operator(names=("MatMul",), axes=_matmul_axes, lower=_lower_matmul),
)

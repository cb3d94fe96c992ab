"""Operators that work element by element, and softmax."""

import torch
from torch import nn

from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation

# operators that torch has as an ordinary layer of the same meaning; others of the family are converted
LAYERS = {"Gelu": nn.GELU, "Silu": nn.SiLU}

UNARY = (
    "Abs", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin", "Softplus", "Sqrt", "Tanh",
)  # fmt: skip
BINARY = ("Add", "Div", "Mul", "Pow", "Sub")
ACTIVATIONS = frozenset(
    ("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Silu", "Tanh")
)


class Arithmetic(nn.Module):
    """A binary operation of two tensors with broadcasting."""

    FUNCTIONS = {"Add": torch.add, "Div": torch.div, "Mul": torch.mul, "Pow": torch.pow, "Sub": torch.sub}  # noqa: RUF012

    def __init__(self, op: str) -> None:
        super().__init__()
        self.function = self.FUNCTIONS[op]

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.function(a, b)  # type: ignore[operator]


def _unary_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    return (p.of(node.inputs[0]),)


def _binary_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    return (p.broadcast(node, [p.of(name) for name in node.inputs]),)


def _lower_binary(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Arithmetic(node.op)


def _lower_layer(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LAYERS[node.op]()


OPERATORS = (
    Operator(names=UNARY, axes=_unary_axes, operands=1),
    Operator(names=tuple(LAYERS), axes=_unary_axes, lower=_lower_layer),
    Operator(names=BINARY, axes=_binary_axes, lower=_lower_binary),
    Operator(names=("Softmax",), axes=_unary_axes),
)

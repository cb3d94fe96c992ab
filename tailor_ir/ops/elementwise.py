"""Operators that work element by element, and softmax."""

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, NodeShapes, Operator, Propagation, no_order

Function = Callable[..., torch.Tensor]

# activations that exist as torch layers
LAYERS: dict[str, Callable[[Node], nn.Module]] = {
    "Celu": lambda node: nn.CELU(node.float("alpha", 1.0)),
    "Elu": lambda node: nn.ELU(node.float("alpha", 1.0)),
    "Gelu": lambda node: nn.GELU(str(node.attribute("approximate", "none"))),
    "HardSwish": lambda node: nn.Hardswish(),
    "LeakyRelu": lambda node: nn.LeakyReLU(node.float("alpha", 0.01)),
    "LogSoftmax": lambda node: nn.LogSoftmax(node.int("axis", -1)),
    "Mish": lambda node: nn.Mish(),
    "Relu": lambda node: nn.ReLU(),
    "Sigmoid": lambda node: nn.Sigmoid(),
    "Silu": lambda node: nn.SiLU(),
    "Softmax": lambda node: nn.Softmax(node.int("axis", -1)),
    "Softplus": lambda node: nn.Softplus(),
    "Softsign": lambda node: nn.Softsign(),
    "Tanh": lambda node: nn.Tanh(),
    "ThresholdedRelu": lambda node: nn.Threshold(node.float("alpha", 1.0), 0.0),
}
FUNCTIONS: dict[str, Function] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": torch.clone,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}
BINARY: dict[str, Function] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}
ACTIVATIONS = frozenset(
    ("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Silu", "Tanh")
)
# ONNX's numbers of element types. Source: onnx.proto, TensorProto.DataType
TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


class Elementwise(nn.Module):
    """A function of broadcasting tensors."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.function(*operands)


class Clip(nn.Module):
    """Clip by constant limits, or by limits given with each call (`below` or `above` is "")."""

    def __init__(self, below: float | str | None, above: float | str | None) -> None:
        super().__init__()
        self.below, self.above = below, above

    def forward(self, x: torch.Tensor, *limits: torch.Tensor) -> torch.Tensor:
        if isinstance(self.below, float) and isinstance(self.above, float):
            return F.hardtanh(x, self.below, self.above)
        given = iter(limits)
        # a constant limit is also given, so that operands stay in order
        below, above = (None if limit is None else next(given) for limit in (self.below, self.above))
        return x if below is None and above is None else torch.clamp(x, below, above)


class Hard(nn.Module):
    """HardSigmoid: alpha · x + beta, clipped to 0 … 1."""

    def __init__(self, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(self.alpha * x + self.beta, 0.0, 1.0)


class Selu(nn.Module):
    """gamma · (x if positive, else alpha · (exp x - 1))."""

    def __init__(self, alpha: float, gamma: float) -> None:
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gamma * F.elu(x, self.alpha)


class Shrink(nn.Module):
    """x + bias below -limit, x - bias above limit, zero between."""

    def __init__(self, bias: float, limit: float) -> None:
        super().__init__()
        self.bias, self.limit = bias, limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() > self.limit, x - self.bias * torch.sign(x), torch.zeros_like(x))


class Cast(nn.Module):
    """A change of the element type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


class Triangle(nn.Module):
    """The upper or lower triangle of matrices, zero elsewhere."""

    def __init__(self, upper: bool, diagonal: int) -> None:
        super().__init__()
        self.function = torch.triu if upper else torch.tril
        self.diagonal = diagonal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.diagonal)


class CumulativeSum(nn.Module):
    """Running sums along an axis, with or without the element itself, from either end."""

    def __init__(self, axis: int, exclusive: bool, reverse: bool) -> None:
        super().__init__()
        self.axis, self.exclusive, self.reverse = axis, exclusive, reverse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ordered = x.flip(self.axis) if self.reverse else x
        total = ordered.cumsum(self.axis)
        total = total - ordered if self.exclusive else total
        return total.flip(self.axis) if self.reverse else total


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divide; integers are rounded towards zero, as in ONNX."""
    whole = not a.is_floating_point() and not b.is_floating_point()
    return torch.div(a, b, rounding_mode="trunc") if whole else torch.div(a, b)


def _chained(function: Function) -> Function:
    return lambda *operands: reduce(function, operands)


def _mean(*operands: torch.Tensor) -> torch.Tensor:
    return reduce(torch.add, operands) / len(operands)


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, slope * x, x)


SEVERAL: dict[str, Function] = {
    "Div": _divide,
    "Max": _chained(torch.maximum),
    "Mean": _mean,
    "Min": _chained(torch.minimum),
    "PRelu": _prelu,
    "Sum": _chained(torch.add),
    "Where": torch.where,
}


def _unary_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    return (p.of(node.inputs[0]),)


def _layer_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    if node.op in ("LogSoftmax", "Softmax"):
        p.put_together((x[node.int("axis", -1)],), node)
    return (x,)


def _broadcast_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    return (p.broadcast(node, [p.of(name) for name in node.inputs]),)


def _cumulative_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    p.put_together(_accumulated(node, p), node)
    return (p.of(node.inputs[0]),)


def _accumulated(node: Node, p: Propagation) -> Dims:
    """The axis of a running sum."""
    return (p.of(node.inputs[0])[p.constant(node, 1).item()],)


def _rows_and_columns(node: Node, p: Propagation) -> Dims:
    """The axes of a triangle."""
    return p.of(node.inputs[0])[-2:]


def _tile_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    """Dimensions of a Tile: copies of a single element become a free axis; the number of copies of longer axes is fixed."""
    found = []
    for axis, (dim, copies) in enumerate(zip(p.of(node.inputs[0]), p.constant(node, 1).tolist(), strict=True)):
        single = axis > 0 and dim.size == 1 and p.is_fixed(dim)
        whole = p.pool.free(copies) if single else p.pool.product((p.pool.fixed(copies), dim))
        found.append(dim if copies == 1 else whole)
    return (tuple(found),)


def _repeats(shapes: NodeShapes) -> tuple[int, ...]:
    return tuple(after // before for before, after in zip(shapes.inputs[0], shapes.outputs[0], strict=True))


def _tile_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    return {1: np.asarray(_repeats(shapes), np.int64)}


def _lower_layer(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return LAYERS[node.op](node)


def _lower_function(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Elementwise((FUNCTIONS | BINARY | SEVERAL)[node.op])


def _lower_modulo(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Elementwise(torch.fmod if node.int("fmod", 0) else torch.remainder)


def _lower_clip(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    limits: list[float | str | None] = []
    for position in (1, 2):
        name = node.inputs[position] if len(node.inputs) > position else ""
        limits.append(None if not name else float(tensors[name]) if name in tensors else "")
    return Clip(*limits)


def _lower_hard_sigmoid(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Hard(node.float("alpha", 0.2), node.float("beta", 0.5))


def _lower_selu(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Selu(node.float("alpha", 1.67326319217681884765625), node.float("gamma", 1.05070102214813232421875))


def _lower_shrink(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return Shrink(node.float("bias", 0.0), node.float("lambd", 0.5))


def _lower_cast(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    number = node.int("to", 1)
    if number not in TYPES:
        raise ImportFailed(f"operator 'Cast' at '{node.name}': to element type {number}; allowed: {sorted(TYPES)}")
    return Cast(TYPES[number])


def _lower_triangle(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    diagonal = int(tensors[node.inputs[1]]) if len(node.inputs) > 1 and node.inputs[1] else 0
    return Triangle(bool(node.int("upper", 1)), diagonal)


def _lower_cumulative(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    return CumulativeSum(int(tensors[node.inputs[1]]), bool(node.int("exclusive", 0)), bool(node.int("reverse", 0)))


def _lower_tile(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    repeats = _repeats(shapes)
    return Elementwise(lambda x: x.repeat(repeats))


OPERATORS = (
    Operator(names=tuple(LAYERS), axes=_layer_axes, order=no_order, lower=_lower_layer),
    Operator(names=tuple(FUNCTIONS), axes=_unary_axes, order=no_order, lower=_lower_function),
    Operator(names=(*BINARY, *SEVERAL), axes=_broadcast_axes, order=no_order, lower=_lower_function),
    Operator(names=("Mod",), axes=_broadcast_axes, order=no_order, lower=_lower_modulo),
    Operator(names=("Clip",), axes=_unary_axes, order=no_order, lower=_lower_clip),
    Operator(names=("HardSigmoid",), axes=_unary_axes, order=no_order, lower=_lower_hard_sigmoid),
    Operator(names=("Selu",), axes=_unary_axes, order=no_order, lower=_lower_selu),
    Operator(names=("Shrink",), axes=_unary_axes, order=no_order, lower=_lower_shrink),
    Operator(names=("Cast",), axes=_unary_axes, order=no_order, lower=_lower_cast),
    Operator(names=("Trilu",), axes=_unary_axes, order=_rows_and_columns, lower=_lower_triangle, operands=1),
    Operator(names=("CumSum",), axes=_cumulative_axes, order=_accumulated, lower=_lower_cumulative, operands=1),
    Operator(
        names=("Tile",), axes=_tile_axes, order=no_order, lower=_lower_tile, operands=1, constants=_tile_constants
    ),
)

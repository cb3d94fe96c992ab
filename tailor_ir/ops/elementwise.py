"""Operators that work element by element, and softmax."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import Dims, Function, NodeShapes, Operator, Propagation, computed_by, no_order, same_axes

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
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
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
SELU_DEFAULTS = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
ACTIVATIONS = frozenset(
    ("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu", "Sigmoid", "Silu", "Tanh")
)
# ONNX's numbers of element types. Source: onnx.proto, TensorProto.DataType
TYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


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


def _hard_sigmoid(x: torch.Tensor, *, alpha: float, beta: float) -> torch.Tensor:
    return torch.clamp(alpha * x + beta, 0.0, 1.0)


def _selu(x: torch.Tensor, *, alpha: float, gamma: float) -> torch.Tensor:
    return gamma * F.elu(x, alpha)


def _shrink(x: torch.Tensor, *, bias: float, limit: float) -> torch.Tensor:
    """x + bias below -limit, x - bias above limit, zero between."""
    return torch.where(x.abs() > limit, x - bias * torch.sign(x), torch.zeros_like(x))


def _cast(x: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


def _cumulative_sum(x: torch.Tensor, *, axis: int, exclusive: bool, reverse: bool) -> torch.Tensor:
    """Running sums along an axis, with or without the element itself, from either end."""
    ordered = x.flip(axis) if reverse else x
    total = ordered.cumsum(axis)
    total = total - ordered if exclusive else total
    return total.flip(axis) if reverse else total


def _divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Divide; integers are rounded towards zero, as in ONNX."""
    whole = not a.is_floating_point() and not b.is_floating_point()
    return torch.div(a, b, rounding_mode="trunc") if whole else torch.div(a, b)


def _mean(*operands: torch.Tensor) -> torch.Tensor:
    return reduce(torch.add, operands) / len(operands)


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, slope * x, x)


JOINING: dict[str, Callable[..., torch.Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Max": lambda *operands: reduce(torch.maximum, operands),
    "Mean": _mean,
    "Min": lambda *operands: reduce(torch.minimum, operands),
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "PRelu": _prelu,
    "Pow": torch.pow,
    "Sub": torch.sub,
    "Sum": lambda *operands: reduce(torch.add, operands),
    "Where": torch.where,
    "Xor": torch.logical_xor,
}


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
        single = axis > 0 and dim.size == 1 and p.pool.is_fixed(dim)
        whole = p.pool.free(copies) if single else p.pool.product((p.pool.fixed(copies), dim))
        found.append(dim if copies == 1 else whole)
    return (tuple(found),)


def _repeats(shapes: NodeShapes) -> tuple[int, ...]:
    return tuple(after // before for before, after in zip(shapes.inputs[0], shapes.outputs[0], strict=True))


def _lower_clip(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    limits: list[float | str | None] = []
    for position in (1, 2):
        name = node.inputs[position] if len(node.inputs) > position else ""
        limits.append(None if not name else float(tensors[name]) if name in tensors else "")
    return Clip(*limits)


def _lower_cast(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    number = node.int("to", 1)
    if number not in TYPES:
        raise ImportFailed(f"{node.place}: to element type {number}; allowed: {sorted(TYPES)}")
    return Function(_cast, dtype=TYPES[number])


def _lower_triangle(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    diagonal = int(tensors[node.inputs[1]]) if len(node.inputs) > 1 and node.inputs[1] else 0
    return Function(torch.triu if node.int("upper", 1) else torch.tril, diagonal=diagonal)


def _lower_cumulative(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    exclusive, reverse = bool(node.int("exclusive", 0)), bool(node.int("reverse", 0))
    return Function(_cumulative_sum, axis=int(tensors[node.inputs[1]]), exclusive=exclusive, reverse=reverse)


HARD_SIGMOID = computed_by(
    _hard_sigmoid, lambda node: {"alpha": node.float("alpha", 0.2), "beta": node.float("beta", 0.5)}
)
SHRINK = computed_by(_shrink, lambda node: {"bias": node.float("bias", 0.0), "limit": node.float("lambd", 0.5)})
SELU = computed_by(_selu, lambda node: {key: node.float(key, default) for key, default in SELU_DEFAULTS.items()})
OPERATORS = (
    Operator(
        names=tuple(LAYERS), axes=_layer_axes, order=no_order, lower=lambda node, shapes, tensors: LAYERS[node.op](node)
    ),
    Operator(
        names=tuple(FUNCTIONS),
        axes=same_axes,
        order=no_order,
        lower=lambda node, shapes, tensors: Function(FUNCTIONS[node.op]),
    ),
    Operator(
        names=tuple(JOINING),
        axes=_broadcast_axes,
        order=no_order,
        lower=lambda node, shapes, tensors: Function(JOINING[node.op]),
    ),
    Operator(
        names=("Mod",),
        axes=_broadcast_axes,
        order=no_order,
        lower=lambda node, shapes, tensors: Function(torch.fmod if node.int("fmod", 0) else torch.remainder),
    ),
    Operator(names=("Clip",), axes=same_axes, order=no_order, lower=_lower_clip),
    Operator(names=("HardSigmoid",), axes=same_axes, order=no_order, lower=HARD_SIGMOID),
    Operator(names=("Selu",), axes=same_axes, order=no_order, lower=SELU),
    Operator(names=("Shrink",), axes=same_axes, order=no_order, lower=SHRINK),
    Operator(names=("Cast",), axes=same_axes, order=no_order, lower=_lower_cast),
    Operator(names=("Trilu",), axes=same_axes, order=_rows_and_columns, lower=_lower_triangle, operands=1),
    Operator(names=("CumSum",), axes=_cumulative_axes, order=_accumulated, lower=_lower_cumulative, operands=1),
    Operator(
        names=("Tile",),
        axes=_tile_axes,
        order=no_order,
        lower=lambda node, shapes, tensors: Function(torch.tile, dims=_repeats(shapes)),
        operands=1,
        constants=lambda node, shapes, tensors: {1: np.asarray(_repeats(shapes), np.int64)},
    ),
)

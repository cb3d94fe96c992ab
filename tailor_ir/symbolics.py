"""Operators that torch's exporter does not know at our opset, in terms of those that it knows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import (
    register_custom_op_symbolic,
    symbolic_helper,
    symbolic_opset11,
    symbolic_opset12,
    unregister_custom_op_symbolic,
)

# graphs and values of torch's TorchScript exporter, which has no public types for them: Any


def _number(g: Any, value: float | list[float]) -> Any:
    return g.op("Constant", value_t=torch.tensor(value))


def _rms_norm(g: Any, x: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
    """x · weight / √(mean x² + epsilon) over the last axes. Source: torch.nn.functional.rms_norm."""
    rank = len(symbolic_helper._get_const(shape, "is", "normalized_shape"))
    given = symbolic_helper._maybe_get_const(epsilon, "f")
    smallest = given if isinstance(given, float) else torch.finfo(torch.float32).eps
    mean = g.op("ReduceMean", g.op("Pow", x, _number(g, 2.0)), axes_i=list(range(-rank, 0)), keepdims_i=1)
    normalised = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, _number(g, smallest))))
    return normalised if symbolic_helper._is_none(weight) else g.op("Mul", normalised, weight)


def _nearest_exact(g: Any, x: Any, size: Any, *scales: Any) -> Any:
    """Nearest neighbours by the centres of pixels. Source: torch.nn.functional.interpolate, mode nearest-exact."""
    settings = {
        "mode_s": "nearest",
        "coordinate_transformation_mode_s": "half_pixel",
        "nearest_mode_s": "round_prefer_ceil",
    }
    empty = _number(g, [])
    if symbolic_helper._is_none(size):
        factors = symbolic_helper._get_const(scales[0], "fs", "scale_factors")
        return g.op("Resize", x, empty, _number(g, [1.0, 1.0, *factors]), **settings)
    before = symbolic_helper._slice_helper(g, g.op("Shape", x), axes=[0], starts=[0], ends=[2])
    target = g.op("Concat", before, g.op("Cast", size, to_i=7), axis_i=0)
    return g.op("Resize", x, empty, empty, target, **settings)


def _constant_pad(g: Any, x: Any, padding: Any, value: Any = None) -> Any:
    """Padding by known amounts. torch's own symbolic computes them in the graph and so loses the shape of the result."""
    amounts, sizes = symbolic_helper._maybe_get_const(padding, "is"), symbolic_helper._get_tensor_sizes(x)
    if not isinstance(amounts, list | tuple) or sizes is None or None in sizes:
        return symbolic_opset11.constant_pad_nd(g, x, padding, value)
    begins, ends = [0] * len(sizes), [0] * len(sizes)
    for index in range(len(amounts) // 2):  # torch lists the last axis first
        begins[-1 - index], ends[-1 - index] = amounts[2 * index : 2 * index + 2]
    pads = g.op("Constant", value_t=torch.tensor([*begins, *ends]))
    fill = symbolic_helper._if_scalar_type_as(symbolic_helper._maybe_get_scalar(value), x)
    result = g.op("Pad", x, pads, fill, mode_s="constant")
    result.setType(x.type().with_sizes([a + b + c for a, b, c in zip(sizes, begins, ends, strict=True)]))
    return result


def _pad(g: Any, x: Any, padding: Any, mode: Any, value: Any) -> Any:
    if symbolic_helper._parse_arg(mode, "s") == "constant":
        return _constant_pad(g, x, padding, value)
    return symbolic_opset11.pad(g, x, padding, mode, value)


def _unfold(g: Any, x: Any, dimension: Any, size: Any, step: Any) -> Any:
    """Sliding windows along one axis by looking up positions; their elements come last. Source: torch.Tensor.unfold."""
    axis, length, stride = (
        symbolic_helper._get_const(v, "i", name)
        for v, name in ((dimension, "dimension"), (size, "size"), (step, "step"))
    )
    rank, whole = symbolic_helper._get_tensor_rank(x), symbolic_helper._get_tensor_dim_size(x, axis)
    if rank is None or whole is None:
        return symbolic_opset12.unfold(g, x, dimension, size, step)
    axis %= rank
    starts = torch.arange((whole - length) // stride + 1) * stride
    positions = g.op("Constant", value_t=starts[:, None] + torch.arange(length)[None])
    windows = g.op("Gather", x, positions, axis_i=axis)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return g.op("Transpose", windows, perm_i=order)


SYMBOLICS: dict[str, Callable[..., Any]] = {
    "aten::constant_pad_nd": _constant_pad,
    "aten::pad": _pad,
    "aten::rms_norm": _rms_norm,
    "aten::unfold": _unfold,
    "aten::_upsample_nearest_exact1d": _nearest_exact,
    "aten::_upsample_nearest_exact2d": _nearest_exact,
}


@contextmanager
def more_operators(opset: int) -> Iterator[None]:
    """While inside, torch's exporter knows these operators too."""
    for name, symbolic in SYMBOLICS.items():
        register_custom_op_symbolic(name, symbolic, opset)
    try:
        yield
    finally:
        for name in SYMBOLICS:
            unregister_custom_op_symbolic(name, opset)

"""Operators that torch's exporter does not know at our opset, expressed by operators that it knows."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.onnx import (
    register_custom_op_symbolic,
    symbolic_helper,
    symbolic_opset9,
    symbolic_opset11,
    symbolic_opset13,
    symbolic_opset14,
    unregister_custom_op_symbolic,
)

from tailor_ir.dims import from_begin, size_by_factor

# torch's TorchScript exporter has no public types for its graphs and values, hence Any


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


def _by_written_factors(resize: Callable[..., Any]) -> Callable[..., Any]:
    """torch's symbolic of a resize, with factors that yield the traced sizes in float32.

    torch multiplies in float64, where 0.29 · 100 is below 29.
    """

    def symbolic(g: Any, x: Any, size: Any, *settings: Any) -> Any:
        factors = symbolic_helper._maybe_get_const(settings[-1], "fs")
        before, after = _traced_sizes(g)
        if isinstance(factors, list) and before and after:
            axes = zip(factors, before[2:], after[2:], strict=True)
            written = [_written_factor(factor, size, wanted) for factor, size, wanted in axes]
            settings = (*settings[:-1], _number(g, written))
        return resize(g, x, size, *settings)

    return symbolic


def _written_factor(factor: float, before: int, after: int) -> float:
    """The float32 nearest to a factor that maps the size `before` to `after`."""
    written = np.float32(factor)
    while (found := size_by_factor(before, written)) != after:
        written = np.nextafter(written, np.float32(0.0 if found > after else np.inf))
    return float(written)


def _nearest_exact(g: Any, x: Any, size: Any, *scales: Any) -> Any:
    """Nearest neighbours by pixel centres. Source: torch.nn.functional.interpolate, mode nearest-exact."""
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
    """Padding by known amounts. torch's symbolic computes the amounts in the graph and thereby loses the result's shape."""
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
    """Sliding windows along one axis by look-ups; the elements of a window are the last axis. Source: torch.Tensor.unfold."""
    axis, length, stride = (
        symbolic_helper._get_const(v, "i", name)
        for v, name in ((dimension, "dimension"), (size, "size"), (step, "step"))
    )
    shape, _ = _traced_sizes(g)
    rank = len(shape)
    axis %= rank
    whole = shape[axis]
    starts = torch.arange((whole - length) // stride + 1) * stride
    positions = g.op("Constant", value_t=starts[:, None] + torch.arange(length)[None])
    windows = g.op("Gather", x, positions, axis_i=axis)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return g.op("Transpose", windows, perm_i=order)


def _traced_sizes(g: Any) -> tuple[list[int], list[int]]:
    """Traced sizes of an operator's first operand and first result."""
    node = g.original_node
    return next(iter(node.inputs())).type().sizes(), next(iter(node.outputs())).type().sizes()


def _extreme(operation: str) -> Callable[..., Any]:
    """Symbolic of adaptive_avg_pool ("ReduceMean") or adaptive_max_pool ("ReduceMax")."""

    def pool(g: Any, x: Any, size: Any) -> Any:
        """One number per piece of an image; pieces are equally large, or overlap. Source: torch.nn.AdaptiveAvgPool2d."""
        shape, after = _traced_sizes(g)
        kind = "Average" if operation == "ReduceMean" else "Max"
        if all(new == 1 for new in after[2:]):
            result = g.op(f"Global{kind}Pool", x)
        elif all(old % new == 0 for old, new in zip(shape, after, strict=True)):
            steps = [old // new for old, new in zip(shape[2:], after[2:], strict=True)]
            result = g.op(f"{kind}Pool", x, kernel_shape_i=steps, strides_i=steps)
        else:
            result = x
            for axis, (old, new) in enumerate(zip(shape, after, strict=True)):
                if old != new:
                    result = _pooled_pieces(g, result, operation, axis, old, new)
        result.setType(x.type().with_sizes(after))
        return (result, None) if operation == "ReduceMax" else result

    return pool


def _pooled_pieces(g: Any, x: Any, operation: str, axis: int, before: int, after: int) -> Any:
    """Pool the pieces of an axis: piece i ranges from ⌊i · before / after⌋ to ⌈(i + 1) · before / after⌉."""
    pieces = []
    for index in range(after):
        start, stop = index * before // after, -(-(index + 1) * before // after)
        piece = symbolic_helper._slice_helper(g, x, axes=[axis], starts=[start], ends=[stop])
        pieces.append(g.op(operation, piece, axes_i=[axis], keepdims_i=1))
    return pieces[0] if len(pieces) == 1 else g.op("Concat", *pieces, axis_i=axis)


def _fold(g: Any, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Sum overlapping blocks by a transposed convolution in which each entry of a block has its own kernel.

    x is (B, C · kernel height · kernel width, blocks). Source: torch.nn.functional.fold.
    """
    kernels, dilations, pads, strides = (
        symbolic_helper._get_const(v, "is", "fold") for v in (kernel, dilation, padding, stride)
    )
    (batch, known, _), (*_, rows, columns) = _traced_sizes(g)
    height, width = kernels
    sizes = (rows, columns)
    spans = [s + 2 * p - d * (k - 1) - 1 for s, p, d, k in zip(sizes, pads, dilations, kernels, strict=True)]
    blocks = [span // step + 1 for span, step in zip(spans, strides, strict=True)]
    entries = torch.eye(height * width).reshape(height * width, 1, height, width)
    weight = g.op("Constant", value_t=entries.repeat(known // (height * width), 1, 1, 1))
    # each group of the transposed convolution holds all entries of one channel, which are thereby summed
    spread = g.op("Reshape", x, g.op("Constant", value_t=torch.tensor([batch, known, *blocks])))
    return g.op(
        "ConvTranspose",
        spread,
        weight,
        group_i=known // (height * width),
        kernel_shape_i=kernels,
        dilations_i=dilations,
        strides_i=strides,
        pads_i=[*pads, *pads],
        output_padding_i=[span % step for span, step in zip(spans, strides, strict=True)],
    )


def _summed(g: Any, x: Any, axis: int) -> Any:
    return symbolic_helper._reducesum_helper(g, x, axes_i=[axis], keepdims_i=0)


def _inner_product(g: Any, a: Any, b: Any) -> Any:
    """Inner product of two vectors, or of each row of a matrix and a vector. Source: torch.vdot, torch.dot, torch.mv."""
    return _summed(g, g.op("Mul", a, b), -1)


def _instance_norm(
    g: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, own: Any, momentum: Any, epsilon: Any, cudnn: Any
) -> Any:
    """An instance norm; in eval mode with running statistics it equals a BatchNorm."""
    if symbolic_helper._parse_arg(own, "i"):
        return symbolic_opset9.instance_norm(g, x, weight, bias, mean, variance, own, momentum, epsilon, cudnn)
    return symbolic_opset9.batch_norm(g, x, weight, bias, mean, variance, own, momentum, epsilon, cudnn)


def _threshold(g: Any, x: Any, limit: Any, value: Any) -> Any:
    return g.op("Where", g.op("Greater", x, limit), x, value)


def _repeat_interleave(g: Any, x: Any, repeats: Any, dim: Any = None, size: Any = None) -> Any:
    """Repeat each entry of an axis. torch's symbolic adds to `dim` in place, which changes other constants."""
    count, axis = symbolic_helper._maybe_get_const(repeats, "t"), symbolic_helper._maybe_get_const(dim, "i")
    shape = symbolic_helper._get_tensor_sizes(x)
    known = isinstance(axis, int) and shape is not None and None not in shape
    if not known or not isinstance(count, torch.Tensor) or count.numel() != 1:
        return symbolic_opset13.repeat_interleave(g, x, repeats, dim, size)
    assert isinstance(axis, int)
    return _each_several_times(g, x, axis % len(shape), int(count), shape)


def _each_several_times(g: Any, x: Any, axis: int, times: int, shape: list[int]) -> Any:
    """Repeat each entry of an axis of x `times` in a row."""
    apart = symbolic_helper._unsqueeze_helper(g, x, [axis + 1])
    tiling = [1] * (len(shape) + 1)
    tiling[axis + 1] = times
    tiled = g.op("Tile", apart, g.op("Constant", value_t=torch.tensor(tiling)))
    result = [*shape[:axis], shape[axis] * times, *shape[axis + 1 :]]
    joined = g.op("Reshape", tiled, g.op("Constant", value_t=torch.tensor(result)))
    joined.setType(x.type().with_sizes(result))
    return joined


def _diff(g: Any, x: Any, count: Any, dim: Any, before: Any = None, after: Any = None) -> Any:
    """Differences between neighbours along an axis. Source: torch.diff."""
    axis, times = (symbolic_helper._get_const(v, "i", name) for v, name in ((dim, "dim"), (count, "n")))
    parts = [part for part in (before, x, after) if not symbolic_helper._is_none(part)]
    result = g.op("Concat", *parts, axis_i=axis) if len(parts) > 1 else x
    for _ in range(times):
        later = symbolic_helper._slice_helper(g, result, axes=[axis], starts=[1], ends=[sys.maxsize])
        earlier = symbolic_helper._slice_helper(g, result, axes=[axis], starts=[0], ends=[-1])
        result = g.op("Sub", later, earlier)
    return result


def _affine_grid(g: Any, theta: Any, size: Any, corners: Any) -> Any:
    """Positions (B, H, W, 2) at which an affine map theta (B, 2, 3) samples an image.

    Source: torch.nn.functional.affine_grid.
    """
    _, shape = _traced_sizes(g)
    if len(shape) != 4:
        return symbolic_helper._unimplemented("affine_grid", "of volumes", theta)
    aligned = bool(symbolic_helper._get_const(corners, "b", "align_corners"))

    def centres(count: int) -> torch.Tensor:
        places = torch.linspace(-1, 1, count) if count > 1 else torch.zeros(1)
        return places if aligned else places * (count - 1) / count

    batch, height, width, _ = shape
    y, x = torch.meshgrid(centres(height), centres(width), indexing="ij")
    base = torch.stack((x, y, torch.ones_like(x)), -1).reshape(-1, 3)
    moved = g.op("MatMul", g.op("Constant", value_t=base), g.op("Transpose", theta, perm_i=[0, 2, 1]))
    return g.op("Reshape", moved, g.op("Constant", value_t=torch.tensor([batch, height, width, 2])))


def _antialiased(mode: str) -> Callable[..., Any]:
    """Symbolic of antialiased interpolation: each axis is multiplied by a matrix of weights."""

    def resize(g: Any, x: Any, size: Any, corners: Any, *scales: Any) -> Any:
        """Source: torch.nn.functional.interpolate, antialias=True."""
        before, after = _traced_sizes(g)
        aligned = bool(symbolic_helper._get_const(corners, "b", "align_corners"))
        result = x
        for axis in (2, 3):
            if before[axis] == after[axis]:
                continue
            entries = torch.eye(before[axis])[None, None]
            shape = (after[axis], before[axis])
            weights = interpolate(entries, shape, mode=mode, align_corners=aligned, antialias=True)[0, 0]
            if axis == 2:
                result = g.op("MatMul", g.op("Constant", value_t=weights), result)
            else:
                result = g.op("MatMul", result, g.op("Constant", value_t=weights.T.contiguous()))
        result.setType(x.type().with_sizes(after))
        return result

    return resize


def _channel_shuffle(g: Any, x: Any, groups: Any) -> Any:
    """Interleave the channels of all groups: the first of each group, the second … Source: torch.nn.ChannelShuffle."""
    shape, _ = _traced_sizes(g)
    count = symbolic_helper._get_const(groups, "i", "groups")
    apart = [shape[0], count, shape[1] // count, *shape[2:]]
    pieces = g.op("Reshape", x, g.op("Constant", value_t=torch.tensor(apart)))
    turned = g.op("Transpose", pieces, perm_i=[0, 2, 1, *range(3, len(apart))])
    result = g.op("Reshape", turned, g.op("Constant", value_t=torch.tensor(shape)))
    result.setType(x.type())
    return result


def _sinc(g: Any, x: Any) -> Any:
    """sin πx / πx; 1 at zero. Zeros are replaced before the division to keep gradients finite. Source: torch.sinc."""
    one = symbolic_helper._if_scalar_type_as(torch.tensor(1.0), x)
    angle = g.op("Mul", x, symbolic_helper._if_scalar_type_as(torch.tensor(math.pi), x))
    is_zero = g.op("Equal", x, symbolic_helper._if_scalar_type_as(torch.tensor(0.0), x))
    safe = g.op("Where", is_zero, one, angle)
    return g.op("Where", is_zero, one, g.op("Div", g.op("Sin", safe), safe))


def _attention(g: Any, q: Any, k: Any, v: Any, mask: Any, dropout: Any, causal: Any, scale: Any, grouped: Any) -> Any:
    """Attention in which keys and values may have fewer heads than queries. Source: scaled_dot_product_attention."""
    if symbolic_helper._get_const(grouped, "b", "enable_gqa"):
        heads = symbolic_helper._get_tensor_sizes(q)[-3]
        k, v = (_repeated_heads(g, x, heads) for x in (k, v))
    return symbolic_opset14.scaled_dot_product_attention(g, q, k, v, mask, dropout, causal, scale, False)


def _repeated_heads(g: Any, x: Any, heads: int) -> Any:
    """Repeat each head of x (…, own heads, N, D) in a row, up to `heads` heads."""
    shape = symbolic_helper._get_tensor_sizes(x)
    axis, times = len(shape) - 3, heads // shape[-3]
    return x if times == 1 else _each_several_times(g, x, axis, times, shape)


def _slice_scatter(g: Any, x: Any, values: Any, dim: Any, start: Any, end: Any, step: Any) -> Any:
    """x with a range along one axis replaced. Source: torch.slice_scatter."""
    shape, _ = _traced_sizes(g)
    axis = symbolic_helper._get_const(dim, "i", "dim") % len(shape)
    bounds = (
        None if symbolic_helper._is_none(v) else symbolic_helper._get_const(v, "i", "bound") for v in (start, end)
    )
    places = range(shape[axis])[slice(*bounds, symbolic_helper._get_const(step, "i", "step"))]  # type: ignore[call-overload]
    return _written(g, x, values, axis, places, shape)  # type: ignore[arg-type]


def _select_scatter(g: Any, x: Any, values: Any, dim: Any, index: Any) -> Any:
    """x with one entry of an axis replaced. Source: torch.select_scatter."""
    shape, _ = _traced_sizes(g)
    axis = symbolic_helper._get_const(dim, "i", "dim") % len(shape)
    place = symbolic_helper._get_const(index, "i", "index") % shape[axis]
    return _written(g, x, symbolic_helper._unsqueeze_helper(g, values, [axis]), axis, range(place, place + 1), shape)


def _written(g: Any, x: Any, values: Any, axis: int, places: range, shape: list[int]) -> Any:
    """x (of `shape`) with the entries at `places` along an axis replaced by values."""
    if not places:
        return g.op("Identity", x)
    if places.step == 1:
        ends = ((0, places.start), (places.stop, shape[axis]))
        sides = [
            symbolic_helper._slice_helper(g, x, axes=[axis], starts=[a], ends=[b]) if a < b else None for a, b in ends
        ]
        parts = [part for part in (sides[0], values, sides[1]) if part is not None]
        result = g.op("Concat", *parts, axis_i=axis)
    else:
        order = torch.arange(shape[axis])
        order[list(places)] = shape[axis] + torch.arange(len(places))
        both = g.op("Concat", x, values, axis_i=axis)
        result = g.op("Gather", both, g.op("Constant", value_t=order), axis_i=axis)
    result.setType(x.type().with_sizes(shape))
    return result


def _index_add(g: Any, x: Any, dim: Any, index: Any, values: Any, factor: Any) -> Any:
    """Add values to x at positions along an axis, which may repeat. Source: torch.Tensor.index_add."""
    if symbolic_helper._get_const(factor, "f", "alpha") != 1:
        factor = symbolic_helper._if_scalar_type_as(symbolic_helper._maybe_get_scalar(factor), x)
        values = g.op("Mul", values, factor)
    axis, places = _places_of_parts(g, dim, index)
    return _scattered(g, x, axis, places, values, "add")


def _index_reduce(g: Any, x: Any, dim: Any, index: Any, values: Any, how: Any, include: Any) -> Any:
    """Source: torch.Tensor.index_reduce."""
    return _scatter_reduce(g, x, dim, _places_of_parts(g, dim, index)[1], values, how, include)


def _places_of_parts(g: Any, dim: Any, index: Any) -> tuple[int, Any]:
    """The axis, and the position along it of each element of the values."""
    shape = g.original_node.inputsAt(3).type().sizes()
    axis = symbolic_helper._get_const(dim, "i", "dim") % len(shape)
    apart = torch.tensor([-1 if i == axis else 1 for i in range(len(shape))])
    column = g.op("Reshape", index, g.op("Constant", value_t=apart))
    return axis, g.op("Expand", column, g.op("Constant", value_t=torch.tensor(shape)))


def _index(g: Any, x: Any, indices: Any) -> Any:
    """Index with positions counted from the beginning: torch's symbolic flattens several axes and mishandles negative ones."""
    sizes, found = _traced_sizes(g)[0], []
    for axis, given in enumerate(symbolic_helper._unpack_list(indices)):
        places = symbolic_helper._maybe_get_const(given, "t")
        if isinstance(places, torch.Tensor) and places.dtype == torch.int64 and bool((places < 0).any()):
            given = g.op("Constant", value_t=from_begin(places, sizes[axis]))
        found.append(given)
    return symbolic_opset11.index(g, x, g.op("prim::ListConstruct", *found))


def _index_put(g: Any, x: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    """Write at positions. With `accumulate`, torch's symbolic would keep only one of several values for a position."""
    result = symbolic_opset11.index_put(g, x, indices, values, accumulate)
    if symbolic_helper._parse_arg(accumulate, "b"):
        for written in result.node().inputs():
            if written.node().kind() == "onnx::ScatterND":
                written.node().s_("reduction", "add")
    return result


def _scatter_reduce(g: Any, x: Any, dim: Any, index: Any, values: Any, how: Any, include: Any) -> Any:
    """Source: torch.scatter_reduce."""
    reduction = symbolic_helper._get_const(how, "s", "reduce")
    axis = symbolic_helper._get_const(dim, "i", "dim")
    if reduction == "mean" or not symbolic_helper._get_const(include, "b", "include_self"):
        return symbolic_helper._unimplemented("scatter_reduce", "means, or without what is there before", x)
    return _scattered(g, x, axis, index, values, SCATTERED[reduction])


def _scattered(g: Any, x: Any, axis: int, index: Any, values: Any, reduction: str) -> Any:
    result = g.op("ScatterElements", x, index, values, axis_i=axis, reduction_s=reduction)
    result.setType(x.type())
    return result


def _pool_with_positions(
    g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any = None
) -> tuple[Any, Any]:
    """Max pooling and the positions of the maxima, counted as in ONNX; only MaxUnpool reads them."""
    sizes, steps, pads, dilations = (
        symbolic_helper._get_const(v, "is", "max_pool") for v in (kernel, stride, padding, dilation)
    )
    rank = len(_traced_sizes(g)[0]) - 2
    sizes, pads, dilations = (list(v) * rank if len(v) == 1 else list(v) for v in (sizes, pads, dilations))
    return g.op(
        "MaxPool",
        x,
        outputs=2,
        kernel_shape_i=sizes,
        strides_i=(list(steps) * rank if len(steps) == 1 else list(steps)) or sizes,
        pads_i=[*pads, *pads],
        dilations_i=dilations,
        ceil_mode_i=int(symbolic_helper._get_const(ceil, "b", "ceil_mode")),
    )


def _deformable(g: Any, x: Any, weight: Any, offset: Any, mask: Any, bias: Any, *settings: Any) -> Any:
    """Convolution whose sampling positions are shifted by `offset`. Source: torchvision.ops.deform_conv2d."""
    numbers = [symbolic_helper._get_const(v, "i", "deform_conv2d") for v in settings[:8]]
    strides, pads, dilations, (groups, offset_groups) = (numbers[i : i + 2] for i in range(0, 8, 2))
    operands = [x, weight, offset, bias, mask] if symbolic_helper._get_const(settings[8], "b", "use_mask") else [
        x, weight, offset, bias
    ]  # fmt: skip
    result = g.op(
        "DeformConv",
        *operands,
        kernel_shape_i=symbolic_helper._get_tensor_sizes(weight)[2:],
        strides_i=strides,
        pads_i=[*pads, *pads],
        dilations_i=dilations,
        group_i=groups,
        offset_group_i=offset_groups,
    )
    result.setType(x.type().with_sizes(_traced_sizes(g)[1]))
    return result


SCATTERED = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""torch's name of a reduction -> ONNX's name."""
INTERPOLATIONS = (
    *(("nearest", rank, "nearest") for rank in (1, 2, 3)), ("linear", 1, "linear"), ("bilinear", 2, "linear"),
    ("trilinear", 3, "linear"), ("bicubic", 2, "cubic"),
)  # fmt: skip
"""Interpolations: torch's name, number of spatial axes, ONNX's name."""
SYMBOLICS: dict[str, Callable[..., Any]] = {
    **{f"aten::adaptive_avg_pool{rank}d": _extreme("ReduceMean") for rank in (1, 2, 3)},
    **{f"aten::adaptive_max_pool{rank}d": _extreme("ReduceMax") for rank in (1, 2, 3)},
    "aten::_upsample_bicubic2d_aa": _antialiased("bicubic"),
    "aten::_upsample_bilinear2d_aa": _antialiased("bilinear"),
    **{f"aten::max_pool{rank}d_with_indices": _pool_with_positions for rank in (1, 2, 3)},
    "torchvision::deform_conv2d": _deformable,
    "aten::affine_grid_generator": _affine_grid,
    "aten::channel_shuffle": _channel_shuffle,
    "aten::col2im": _fold,
    "aten::diff": _diff,
    "aten::dot": _inner_product,
    "aten::index": _index,
    "aten::index_add": _index_add,
    "aten::index_put": _index_put,
    "aten::index_reduce": _index_reduce,
    "aten::instance_norm": _instance_norm,
    "aten::mv": _inner_product,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::scaled_dot_product_attention": _attention,
    "aten::scatter_reduce": _scatter_reduce,
    "aten::select_scatter": _select_scatter,
    "aten::sinc": _sinc,
    "aten::slice_scatter": _slice_scatter,
    "aten::threshold": _threshold,
    "aten::vdot": _inner_product,
    "aten::constant_pad_nd": _constant_pad,
    "aten::pad": _pad,
    "aten::rms_norm": _rms_norm,
    "aten::unfold": _unfold,
    **{
        f"aten::upsample_{name}{rank}d": _by_written_factors(
            symbolic_helper._interpolate_helper(f"upsample_{name}{rank}d", rank + 2, mode)
        )
        for name, rank, mode in INTERPOLATIONS
    },
    **{f"aten::_upsample_nearest_exact{rank}d": _by_written_factors(_nearest_exact) for rank in (1, 2, 3)},
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

"""Operators without weights that change spatial sizes: padding, resizing, and moving channels to positions and back.

Forms of Resize that torch does not support interpolate along single axes by matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.dims import FACTORS, FILTERED, Dim, size_by_factor
from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node, Tensors
from tailor_ir.ops.registry import (
    Dims,
    Function,
    NodeShapes,
    Operator,
    Propagation,
    computed_by,
    no_order,
    order_of_positions,
)


def coordinates(node: Node, before: int, after: int, factor: float) -> np.ndarray:
    """Source coordinate along an axis of each position of the result. Source: ONNX, Resize-19, coordinate transformations."""
    transform = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    places, ratio = np.arange(after, dtype=np.float32), np.float32(factor)
    half = (places + np.float32(0.5)) / ratio - np.float32(0.5)
    match transform:
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return half if after > 1 else np.zeros_like(half)
        case "half_pixel_symmetric":
            adjusted = np.float32(after / (factor * before))
            return half + np.float32(before / 2) * (1 - adjusted)
        case "align_corners":
            return places * np.float32((before - 1) / (after - 1)) if after > 1 else np.zeros_like(places)
        case "asymmetric":
            return places / ratio
    raise ImportFailed(
        f"{node.place}: coordinates by '{transform}', which reads a region of interest; allowed: "
        "resizing of whole images; crop before resizing"
    )


def _axis_weights(node: Node, before: int, after: int, factor: float) -> np.ndarray:
    """The matrix (after, before) that resizes one axis. Source: ONNX, Resize-19.

    When downsampling with `antialias`, the filter is widened to the distance of the positions.
    """
    places = coordinates(node, before, after, factor)
    weights, rows = np.zeros((after, before), np.float64), np.arange(after)
    mode = str(node.attribute("mode", "nearest"))
    if mode == "nearest":
        weights[rows, np.clip(_nearest(node, places), 0, before - 1)] = 1.0
        return weights.astype(np.float32)
    narrow = min(factor, 1.0) if node.int("antialias", 0) else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / narrow))
    first = np.floor(places).astype(np.int64)
    found = []
    for offset in range(-reach, reach + 2):
        distance = np.abs((first + offset - places.astype(np.float64)) * narrow)
        found.append((first + offset, _kernel(node, mode, distance)))
    if node.int("exclude_outside", 0):
        found = [(at, np.where((at >= 0) & (at < before), own, 0.0)) for at, own in found]
    total = sum(own for _, own in found)
    for at, own in found:
        np.add.at(weights, (rows, np.clip(at, 0, before - 1)), own / total)
    return weights.astype(np.float32)


def _nearest(node: Node, places: np.ndarray) -> np.ndarray:
    match str(node.attribute("nearest_mode", "round_prefer_floor")):
        case "floor":
            found = np.floor(places)
        case "ceil":
            found = np.ceil(places)
        case "round_prefer_ceil":
            found = np.floor(places + np.float32(0.5))
        case _:
            found = np.ceil(places - np.float32(0.5))
    return found.astype(np.int64)


def _kernel(node: Node, mode: str, distance: np.ndarray) -> np.ndarray:
    """Weights as a function of the distance from a position: linear, or cubic with a parameter."""
    if mode == "linear":
        return np.clip(1.0 - distance, 0.0, None)
    a = node.float("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


class AlongAxes(nn.Module):
    """Apply a function of (x, tensor, axis) along axes, one after the other, each with a stored tensor."""

    def __init__(
        self, function: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], stored: Mapping[int, np.ndarray]
    ) -> None:
        super().__init__()
        self.function, self.axes = function, tuple(stored)
        for axis, each in stored.items():
            self.register_buffer(f"along{axis}", torch.from_numpy(each), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for axis in self.axes:
            x = self.function(x, self.get_buffer(f"along{axis}"), axis)
        return x


def _multiplied(x: torch.Tensor, matrix: torch.Tensor, axis: int) -> torch.Tensor:
    """One axis multiplied by a matrix (size after, size before)."""
    return F.linear(x.movedim(axis, -1), matrix).movedim(-1, axis)


def _taken(x: torch.Tensor, positions: torch.Tensor, axis: int) -> torch.Tensor:
    """Padding by entries of x, which torch supports only for the last axes."""
    return x.index_select(axis, positions)


def resizing_matrices(
    node: Node, before: Sequence[int], after: Sequence[int], factors: Sequence[float]
) -> dict[int, np.ndarray]:
    """Matrix of each axis that changes. factors: () stands for the ratios of the sizes."""
    given = factors or [new / old for old, new in zip(before, after, strict=True)]
    sizes = zip(before, after, given, strict=True)
    return {
        axis: _axis_weights(node, old, new, factor)
        for axis, (old, new, factor) in enumerate(sizes)
        if old != new or factor != 1.0
    }


PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
LEFT_OVER = {"reflect": 0, "wrap": 1}
"""Slack by padding mode: an axis needs at least the padding's width plus one entries, minus this number."""
LARGEST_DENOMINATOR = 1000
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _pads(node: Node, tensors: Mapping[str, torch.Tensor], rank: int) -> tuple[tuple[int, int], ...]:
    """Number of elements added before and after each axis."""
    values = [int(v) for v in tensors[node.inputs[1]].reshape(-1).tolist()]
    axes = range(rank)
    if len(node.inputs) > 3 and node.inputs[3]:
        axes = [int(a) % rank for a in tensors[node.inputs[3]].reshape(-1).tolist()]  # type: ignore[assignment]
    named = dict(zip(axes, zip(values[: len(values) // 2], values[len(values) // 2 :], strict=True), strict=True))
    return tuple(named.get(axis, (0, 0)) for axis in range(rank))


def _pad_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x = p.of(node.inputs[0])
    for position in range(1, len(node.inputs)):
        if node.inputs[position]:
            p.constant(node, position)
    mode = str(node.attribute("mode", "constant"))
    pads = _pads(node, p.tensors, len(x))
    return (tuple(_padded(node, p, dim, *added, mode) for dim, added in zip(x, pads, strict=True)),)


def _padded(node: Node, p: Propagation, dim: Dim, before: int, after: int, mode: str) -> Dim:
    if not before and not after:
        return dim
    if p.pool.depends_on_input(dim):
        if mode in LEFT_OVER and max(before, after) > 0:  # the padding repeats entries of the axis
            p.pool.needed.append(p.pool.window(dim, 1, LEFT_OVER[mode] - max(before, after)))
        return p.pool.window(dim, 1, before + after)
    if mode == "constant" and before >= 0 and after >= 0:
        around = [p.pool.fixed(size) for size in (before, after)]
        return p.pool.concat(tuple(d for d in (around[0], dim, around[1]) if d.size))
    p.freeze((dim,), node, f"pads channels by {before} and {after} (mode '{mode}')")
    return p.pool.fixed(dim.size + before + after)


def _lower_pad(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    pads = _pads(node, tensors, len(shapes.inputs[0]))
    value = float(tensors[node.inputs[2]]) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    mode = str(node.attribute("mode", "constant"))
    if mode not in PAD_MODES:
        raise ImportFailed(f"{node.place}: mode '{mode}'; allowed: {', '.join(PAD_MODES)}")
    first = next((axis for axis, added in enumerate(pads) if any(added)), len(pads) - 1)
    if mode != "constant" and (first < 2 or len(pads) not in (3, 4, 5)):
        sizes = shapes.inputs[0]
        found = {axis: _positions(sizes[axis], *added, mode) for axis, added in enumerate(pads) if any(added)}
        return AlongAxes(_taken, found)
    first = first if mode == "constant" else 2  # torch's other modes pad all spatial axes at once
    flat = tuple(v for added in reversed(pads[first:]) for v in added)
    filling = {"value": value} if mode == "constant" else {}
    return Function(F.pad, pad=flat, mode=PAD_MODES[mode], **filling)


def _positions(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Source position of each entry of a padded axis; negative padding crops."""
    kept = np.arange(size)[max(0, -before) : size - max(0, -after)]
    return np.pad(kept, (max(0, before), max(0, after)), mode=mode)  # type: ignore[call-overload]


def _resize_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, sizes = p.of(node.inputs[0]), p.output_sizes(node)
    for position in range(2, len(node.inputs)):
        if node.inputs[position]:
            p.constant(node, position)
    coordinates(node, 2, 2, 1.0)  # raises for unknown coordinate transformations
    if sizes[:2] != tuple(d.size for d in x[:2]):
        raise ImportFailed(f"{node.place}: resizes channels; allowed: spatial axes")
    return ((*x[:2], *(_resized(p, dim, size) for dim, size in zip(x[2:], sizes[2:], strict=True))),)


def _stretched(node: Node, p: Propagation) -> Dims:
    """The positions between which the operator interpolates."""
    return p.of(node.inputs[0])[2:]


def _resized(p: Propagation, dim: Dim, size: int) -> Dim:
    """A resized dimension: a single position becomes a free axis; other axes keep their ratio."""
    if dim.size == 1 and size > 1:
        return p.pool.free(size)
    return p.pool.scaled(dim, size, dim.size)


def _interpolation(node: Node, before: Sequence[int], after: Sequence[int]) -> tuple[str, bool] | None:
    """torch's mode, and whether corners are aligned; None if torch has no such mode."""
    mode = str(node.attribute("mode", "nearest"))
    transform = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    half = transform in ("half_pixel", "pytorch_half_pixel")
    nearest = str(node.attribute("nearest_mode", "round_prefer_floor"))
    rank = len(before) - 2
    whole = all(b % a == 0 for a, b in zip(before, after, strict=True))  # no position is midway between neighbours
    rounds = nearest == "round_prefer_ceil" or (nearest == "round_prefer_floor" and whole)
    stretched = str(node.attribute("keep_aspect_ratio_policy", "stretch")) == "stretch"
    plain = stretched and not node.int("antialias", 0) and not node.int("exclude_outside", 0)
    if mode == "nearest" and stretched and transform == "asymmetric" and nearest == "floor":
        return "nearest", False
    if mode == "nearest" and stretched and half and rounds:
        return "nearest-exact", False
    if mode == "linear" and (half or transform == "align_corners") and plain:
        return LINEAR[rank], not half
    cubic = mode == "cubic" and rank == 2 and plain and abs(node.float("cubic_coeff_a", -0.75) + 0.75) < 1e-6
    return ("bicubic", not half) if cubic and (half or transform == "align_corners") else None


def _factors(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> tuple[float, ...] | None:
    """The network's factors of all axes, on which the coordinates depend; None if it has none or they do not fit the sizes.

    The factors must yield the sizes both in torch, which multiplies in float64, and in onnxruntime.
    """
    if len(node.inputs) < 3 or not node.inputs[2] or not tensors[node.inputs[2]].numel():
        return None
    factors = tuple(map(_before_rounding, tensors[node.inputs[2]].reshape(-1).tolist()))
    sizes = zip(factors, shapes.inputs[0], shapes.outputs[0], strict=True)
    return factors if all(int(f * a) == size_by_factor(a, f) == b for f, a, b in sizes) else None


def _before_rounding(factor: float) -> float:
    """The simple fraction nearest to a float32, if it rounds to it: 1.7 instead of 1.69999 or 1.70000005; else the factor.

    torch's nearest neighbours of positions that coincide exactly with a source position depend on it.
    """
    simple = float(Fraction(factor).limit_denominator(LARGEST_DENOMINATOR))
    return simple if np.float32(simple) == np.float32(factor) else factor


def _lower_resize(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    factors = _factors(node, shapes, tensors)
    found = _interpolation(node, shapes.inputs[0], shapes.outputs[0])
    if found is None:
        return AlongAxes(_multiplied, resizing_matrices(node, shapes.inputs[0], shapes.outputs[0], factors or ()))
    mode, corners = found
    wanted: dict[str, object] = {"size": shapes.outputs[0][2:]} if factors is None else {"scale_factor": factors[2:]}
    align = None if mode in ("nearest", "nearest-exact") else corners
    return Function(F.interpolate, mode=mode, align_corners=align, **wanted)


def _lower_filtered(node: Node, shapes: NodeShapes, tensors: Tensors) -> nn.Module:
    factors = _filtered_attributes(node, shapes)[FACTORS]
    return AlongAxes(_multiplied, resizing_matrices(node, shapes.inputs[0], shapes.outputs[0], factors))


def _filtered_attributes(node: Node, shapes: NodeShapes) -> dict[str, tuple[float, ...]]:
    """The network's factors; () if they do not yield the sizes."""
    factors = tuple(float(f) for f in node.attribute(FACTORS, ()))  # type: ignore[union-attr]
    sizes = zip(factors, shapes.inputs[0], shapes.outputs[0], strict=False)
    return {FACTORS: factors if all(size_by_factor(a, f) == b for f, a, b in sizes) else ()}


def _resize_constants(node: Node, shapes: NodeShapes, tensors: Mapping[str, torch.Tensor]) -> dict[int, np.ndarray]:
    factors = _factors(node, shapes, tensors)
    if factors is not None:
        return {1: np.zeros(0, np.float32), 2: np.asarray(factors, np.float32)}
    return {1: np.zeros(0, np.float32), 2: np.zeros(0, np.float32), 3: np.asarray(shapes.outputs[0], np.int64)}


def _by_column(node: Node) -> bool:
    return str(node.attribute("mode", "DCR")) == "CRD"


def _depth_to_space_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, block = p.of(node.inputs[0]), node.int("blocksize", 1)
    channels, inner = p.pool.free(x[1].size // block**2), p.pool.fixed(block)
    factors = (channels, inner, inner) if _by_column(node) else (inner, inner, channels)
    p.unify(x[1], p.pool.product(factors), node)
    return ((x[0], channels, *(p.pool.scaled(dim, block, 1) for dim in x[2:])),)


def _space_to_depth_axes(node: Node, p: Propagation) -> tuple[Dims, ...]:
    x, block = p.of(node.inputs[0]), node.int("blocksize", 1)
    inner = p.pool.fixed(block)
    return ((x[0], p.pool.product((inner, inner, x[1])), *(p.pool.scaled(dim, 1, block) for dim in x[2:])),)


def _depth_to_space(x: torch.Tensor, *, block: int, by_column: bool) -> torch.Tensor:
    """Move blocks of channels to blocks of positions."""
    if by_column:
        return F.pixel_shuffle(x, block)
    batch, _, height, width = x.shape
    x = x.reshape(batch, block, block, -1, height, width).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(batch, -1, height * block, width * block)


def _space_to_depth(x: torch.Tensor, *, block: int) -> torch.Tensor:
    """Move blocks of positions to blocks of channels."""
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels, height // block, block, width // block, block)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // block, width // block)


OPERATORS = (
    Operator(names=("Pad",), axes=_pad_axes, order=no_order, lower=_lower_pad, operands=1),
    Operator(
        names=("Resize",),
        axes=_resize_axes,
        order=_stretched,
        lower=_lower_resize,
        operands=1,
        constants=_resize_constants,
    ),
    Operator(
        names=(FILTERED,), axes=_resize_axes, order=_stretched, lower=_lower_filtered, attributes=_filtered_attributes
    ),
    Operator(
        names=("DepthToSpace",),
        axes=_depth_to_space_axes,
        order=order_of_positions,
        lower=computed_by(
            _depth_to_space, lambda node: {"block": node.int("blocksize", 1), "by_column": _by_column(node)}
        ),
    ),
    Operator(
        names=("SpaceToDepth",),
        axes=_space_to_depth_axes,
        order=order_of_positions,
        lower=computed_by(_space_to_depth, lambda node: {"block": node.int("blocksize", 1)}),
    ),
)

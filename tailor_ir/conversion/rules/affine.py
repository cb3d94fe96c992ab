"""Scales and shifts of single channels, such as BatchNorms and sums with constants: they go into the weights beside them."""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.activations import gelu_operand
from tailor_ir.conversion.rules.linear_maps import (
    FLOATS,
    LINEAR,
    ChannelMap,
    StoredMap,
    gives_shift,
    operand_channels,
    scale_operand,
    scale_result,
    stored_map,
    takes_shift,
)
from tailor_ir.conversion.rules.no_ops import RESHAPES, keeps_shape, operand_and_constant

AFFINE = ("Add", "Sub", "Mul", "Div", "BatchNormalization")


def affine_operand(draft: OnnxDraft, node: OnnxNode) -> str | None:
    """The computed operand of a node that may scale or shift single channels."""
    if node.op == "BatchNormalization":
        return node.inputs[0]
    if node.op == "Sub" and draft.is_constant(node.inputs[0]) and not draft.is_constant(node.inputs[1]):
        return node.inputs[1]
    found = operand_and_constant(draft, node)
    return found[0] if found else None


def channel_map(draft: OnnxDraft, node: OnnxNode, axis: int, channels: int) -> ChannelMap | None:
    """What a node does to the channels along this axis of its operand; None where it does more, or something else."""
    if node.op == "BatchNormalization":
        return _of_norm(draft, node, channels) if axis == 1 else None
    operand = affine_operand(draft, node)
    rank = draft.rank(operand) if operand else None
    (name,) = [each for each in node.inputs if each != operand] or [""]
    row = _row(draft, name, axis, channels, rank) if rank is not None else None
    if row is None:
        return None
    ones, zeros = np.ones(channels), np.zeros(channels)
    match node.op:
        case "Add":
            return ChannelMap(ones, row)
        case "Sub":
            return ChannelMap(ones, -row) if node.inputs[0] == operand else ChannelMap(-ones, row)
        case "Mul":
            return ChannelMap(row, zeros)
        case _:
            return ChannelMap(1 / row, zeros) if row.all() else None


def _row(draft: OnnxDraft, name: str, axis: int, channels: int, rank: int) -> np.ndarray | None:
    """A constant with one number for each channel, or one for all of them."""
    array = draft.array(name)
    if array is None or array.dtype.type not in FLOATS or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(size != 1 for position, size in enumerate(shape) if position != axis % rank):
        return None
    if shape[axis % rank] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1), channels).astype(np.float64)


def _of_norm(draft: OnnxDraft, node: OnnxNode, channels: int) -> ChannelMap | None:
    arrays = [draft.array(name) for name in node.inputs[1:5]]
    old = draft.opset < 7 or not node.integer("spatial", 1)
    if old or node.integer("training_mode", 0) or any(array is None or array.size != channels for array in arrays):
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + node.number("epsilon", 1e-5))
    return ChannelMap(factor, bias - mean * factor)


def fold_after(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Put a node into the weights of the operator before it; transposes may stand between, and a bias of a MatMul."""
    operand = affine_operand(draft, node)
    rank = draft.rank(operand) if operand else None
    if operand is None or rank is None:
        return False
    single = node.op != "BatchNormalization" and any(draft.scalar(name) is not None for name in node.inputs)
    axes = [1] if node.op == "BatchNormalization" else [-1] if single else list(range(rank))
    for axis in axes:
        name, position = above_reshapes(draft, operand), None
        if not single:
            name, position = _above_transposes(draft, operand, axis)
        if (bias := _bias_of(draft, name, position)) is not None:
            if _fold_through_bias(draft, node, bias, axis):
                return True
            continue
        stored = stored_map(draft, draft.producer(name))
        if stored is None or not draft.read_once(name):
            continue
        if position is not None and position != stored.axis % (draft.rank(name) or rank):
            continue
        after = channel_map(draft, node, axis, stored.channels)
        if after is None or (after.shifts and not gives_shift(draft, stored.node)):
            continue
        return draft.bypass(node, operand) and scale_result(draft, stored, after)
    return False


def above_reshapes(draft: OnnxDraft, name: str) -> str:
    """What a value is made of by reshapes and transposes alone that nobody else reads."""
    while draft.read_once(name) and (node := draft.producer(name, "Transpose", *RESHAPES)) is not None:
        name = node.inputs[0]
    return name


def _above_transposes(draft: OnnxDraft, name: str, axis: int) -> tuple[str, int]:
    """Through the transposes above a value that nobody else reads: what they transpose, and where the axis is in it."""
    while draft.read_once(name):
        transpose = draft.producer(name, "Transpose")
        perm = transpose.integers("perm") if transpose else None
        if transpose is None or perm is None:
            break
        name, axis = transpose.inputs[0], perm[axis]
    return name, axis


def _bias_of(draft: OnnxDraft, name: str, axis: int | None) -> tuple[OnnxNode, StoredMap] | None:
    """The sum that is this value, of a MatMul by stored weights and a stored bias along this axis (None: its last one)."""
    node = draft.producer(name, "Add")
    found = operand_and_constant(draft, node) if node else None
    if node is None or found is None or not draft.read_once(name) or not draft.read_once(found[0]):
        return None
    stored = stored_map(draft, draft.producer(found[0], "MatMul"))
    rank = draft.rank(found[0])
    if stored is None or rank is None or axis not in (None, rank - 1):
        return None
    return (node, stored) if channel_map(draft, node, -1, stored.channels) is not None else None


def _fold_through_bias(draft: OnnxDraft, node: OnnxNode, bias: tuple[OnnxNode, StoredMap], axis: int) -> bool:
    """(x·W + b)·s + t is x·(W·s) + (b·s + t)."""
    sum_node, stored = bias
    operand = affine_operand(draft, node)
    after = channel_map(draft, node, axis, stored.channels)
    own = channel_map(draft, sum_node, -1, stored.channels)
    if operand is None or after is None or own is None or not draft.bypass(node, operand):
        return False
    scale_result(draft, stored, ChannelMap(after.scale, np.zeros(stored.channels)))
    _store_bias(draft, sum_node, own.then(after).shift, stored.weight.dtype)
    return True


def _store_bias(draft: OnnxDraft, node: OnnxNode, bias: np.ndarray, kind: np.dtype) -> None:
    (name,) = [each for each in node.inputs if draft.is_constant(each)]
    stored = draft.constant(bias.astype(kind), name)
    draft.read(node, *(stored if each == name else each for each in node.inputs))


def fold_before(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Put a node into the weights of all operators that read it. The last product of a Gelu stays with its other nodes."""
    return gelu_operand(draft, node) is None and _fold_into_readers(draft, node)


def fold_gelu_half(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Put the half of a Gelu, its last product, into the weights of all operators that read it."""
    halved = gelu_operand(draft, node) is not None and affine_operand(draft, node) is not None
    return halved and _fold_into_readers(draft, node)


def _fold_into_readers(draft: OnnxDraft, node: OnnxNode) -> bool:
    operand, result = affine_operand(draft, node), node.outputs[0]
    readers = draft.readers(result)
    if operand is None or not readers or result in draft.kept or any(draft.readers(name) for name in node.outputs[1:]):
        return False
    folds: list[tuple[StoredMap, ChannelMap]] = []
    for reader in readers:
        stored = stored_map(draft, reader) if reader.op in LINEAR and reader.inputs[0] == result else None
        if stored is None or reader.inputs.count(result) > 1:
            return False
        axis, channels = operand_channels(stored)
        before = (
            channel_map(draft, node, axis if axis >= 0 else (draft.rank(result) or 0) - 1, channels)
            if channels
            else None
        )
        if before is None or not _may_fold(stored, before):
            return False
        folds.append((stored, before))
    for stored, before in folds:
        scale_operand(draft, stored, before)
    return draft.bypass(node, operand)


def _may_fold(stored: StoredMap, before: ChannelMap) -> bool:
    return not before.shifts or takes_shift(stored.node)


def merge_scales(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A number by which one operand of a product is scaled goes into the other operand. `node`: MatMul."""
    one, other = (_scale_of(draft, name) for name in node.inputs)
    if one is not None and other is not None:
        return one[0] is not other[0] and _join_scales(draft, one, other)
    for found, beside in ((one, node.inputs[1]), (other, node.inputs[0])):
        if found is not None and _scale_above(draft, beside, found[1]):
            return draft.bypass(found[0], found[2])
    return False


def _scale_above(draft: OnnxDraft, name: str, number: float) -> bool:
    """Put a factor of a value into the weights that it is made with, above reshapes."""
    name = above_reshapes(draft, name)
    if (bias := _bias_of(draft, name, None)) is not None:
        sum_node, stored = bias
        own = channel_map(draft, sum_node, -1, stored.channels)
        assert own is not None, "a stored bias is a shift of channels"
        _store_bias(draft, sum_node, own.shift * number, stored.weight.dtype)
    elif (found := stored_map(draft, draft.producer(name))) is None or not draft.read_once(name):
        return False
    else:
        stored = found
    return scale_result(draft, stored, ChannelMap(np.full(stored.channels, number), np.zeros(stored.channels)))


def _join_scales(draft: OnnxDraft, one: "_Scale", other: "_Scale") -> bool:
    """Multiply the number of one product by that of another, which is not needed then."""
    (first, number, kept), (second, factor, source) = one, other
    name = next(each for each in first.inputs if draft.scalar(each) is not None)
    array = draft.array(name)
    if array is None or array.dtype.type not in FLOATS or not draft.bypass(second, source):
        return False
    stored = draft.constant(np.full(array.shape, number * factor, array.dtype), name)
    first.become("Mul", {})
    draft.read(first, kept, stored)
    return True


_Scale = tuple[OnnxNode, float, str]
"""A product with a number, the number, and what is multiplied."""


def _scale_of(draft: OnnxDraft, name: str) -> _Scale | None:
    """The product with a single number that a value is, but for reshapes and transposes above it that nobody else reads."""
    name = above_reshapes(draft, name)
    node = draft.producer(name, "Mul", "Div") if draft.read_once(name) else None
    found = operand_and_constant(draft, node) if node else None
    number = draft.scalar(found[1]) if found else None
    if node is None or found is None or not number or not keeps_shape(draft, *found):
        return None
    return node, (number if node.op == "Mul" else 1 / number), found[0]


def merge_affine(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Two sums, or two products, with constants in a row are one."""
    found = operand_and_constant(draft, node)
    first = draft.producer(found[0], *PAIRS[node.op]) if found else None
    inner = operand_and_constant(draft, first) if first else None
    if found is None or first is None or inner is None or not draft.read_once(found[0]):
        return False
    if gelu_operand(draft, first) is not None:
        return False
    one, other = draft.array(inner[1]), draft.array(found[1])
    if one is None or other is None or one.dtype != other.dtype or one.dtype.type not in FLOATS:
        return False
    kind, largest = one.dtype, max(one.size, other.size)
    one, other = one.astype(np.float64), other.astype(np.float64)
    if first.op in INVERSES:
        one = INVERSES[first.op](one)
    if node.op in INVERSES:
        other = INVERSES[node.op](other)
    merged = one + other if node.op in ("Add", "Sub") else one * other
    if merged.size > largest or not np.isfinite(merged).all():
        return False
    stored = draft.constant(merged.astype(kind), found[1])
    node.become("Add" if node.op in ("Add", "Sub") else "Mul", {})
    draft.read(node, inner[0], stored)
    return True


PAIRS = {"Add": ("Add", "Sub"), "Sub": ("Add", "Sub"), "Mul": ("Mul", "Div"), "Div": ("Mul", "Div")}
INVERSES = {"Sub": np.negative, "Div": np.reciprocal}
"""Operators as sums and products: what happens to their constant."""

"""Nodes whose result is one of their operands."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tailor_ir.conversion.draft import NodeRewrite, OnnxDraft, Size, all_known
from tailor_ir.conversion.nodes import OnnxNode

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that keep all elements in their order."""
NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Abs", "Exp", "Sqrt", "Softplus", "ReduceL1", "ReduceL2")

Unchanged = Callable[[OnnxDraft, OnnxNode], bool]
"""Whether a node's first result is its first operand."""


def same_elements(draft: OnnxDraft, one: str, other: str) -> bool:
    """Whether two values of the same elements in the same order have the same dimensions, too."""
    before, after = draft.shape(one), draft.shape(other)
    if before is None or after is None or len(before) != len(after):
        return False
    different = [pair for pair in zip(before, after, strict=True) if pair[0] is None or pair[0] != pair[1]]
    if all_known(before) and all_known(after):
        return not different
    return len(different) <= 1 and 0 not in (*before, *after)  # the one unknown size follows from the others


def same_shape(one: tuple[Size, ...] | None, other: tuple[Size, ...] | None) -> bool:
    """Whether two shapes are known to be equal."""
    return one is not None and one == other and None not in one


def keeps_shape(draft: OnnxDraft, value: str, constant: str) -> bool:
    """Whether a value with a constant broadcast to it has the shape that it had."""
    shape, added = draft.shape(value), draft.shape(constant)
    if shape is None or added is None or len(added) > len(shape):
        return False
    return all(a in (1, s) for a, s in zip(added, shape[len(shape) - len(added) :], strict=True))


def _same_result(draft: OnnxDraft, node: OnnxNode) -> bool:
    return same_shape(draft.shape(node.inputs[0]), draft.shape(node.outputs[0]))


def _dropout(draft: OnnxDraft, node: OnnxNode) -> bool:
    training = node.input(2)
    return draft.opset >= 7 and (not training or draft.scalar(training) == 0)


def _cast(draft: OnnxDraft, node: OnnxNode) -> bool:
    return draft.element_type(node.inputs[0]) == node.integer("to", 0)


def _transpose(draft: OnnxDraft, node: OnnxNode) -> bool:
    perm = node.integers("perm")
    return perm == tuple(range(len(perm))) if perm else (draft.rank(node.inputs[0]) or 9) < 2


def _pad(draft: OnnxDraft, node: OnnxNode) -> bool:
    pads = draft.integers(node.input(1)) if len(node.inputs) > 1 else node.integers("pads")
    return pads is not None and not any(pads)


def _slice(draft: OnnxDraft, node: OnnxNode) -> bool:
    steps = draft.integers(node.input(4)) if node.input(4) else (1,)
    return steps is not None and set(steps) <= {1} and _same_result(draft, node)


def _expand(draft: OnnxDraft, node: OnnxNode) -> bool:
    target = draft.integers(node.inputs[1])
    shape = draft.shape(node.inputs[0])
    if target is not None and set(target) <= {1}:
        return shape is not None and len(target) <= len(shape)
    return _same_result(draft, node)


def _tile(draft: OnnxDraft, node: OnnxNode) -> bool:
    return set(draft.integers(node.inputs[1]) or (0,)) == {1}


def _resize(draft: OnnxDraft, node: OnnxNode) -> bool:
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    scales = draft.array(node.input(2)) if node.input(2) else None
    kept = scales is not None and scales.size > 0 and bool((scales == 1).all())
    return mode != "tf_crop_and_resize" and (
        kept or (all_known(draft.shape(node.inputs[0])) and _same_result(draft, node))
    )


def _pool(draft: OnnxDraft, node: OnnxNode) -> bool:
    rows = (node.integers(name) or () for name in ("kernel_shape", "strides", "dilations"))
    return (
        all({*row} <= {1} for row in rows)
        and not any(node.integers("pads") or ())
        and node.text("auto_pad", "NOTSET") != "SAME_LOWER"
    )


def _clip(draft: OnnxDraft, node: OnnxNode) -> bool:
    return not any(node.inputs[1:]) and not node.has("min") and not node.has("max") and draft.opset >= 11


def _relu(draft: OnnxDraft, node: OnnxNode) -> bool:
    return draft.producer(node.inputs[0], *NEVER_NEGATIVE) is not None


def _gather(draft: OnnxDraft, node: OnnxNode) -> bool:
    axis, shape, picked = node.integer("axis", 0), draft.shape(node.inputs[0]), draft.shape(node.inputs[1])
    if shape is None or picked is None or len(picked) != 1 or shape[axis] != picked[0]:
        return False
    return draft.integers(node.inputs[1]) == tuple(range(picked[0]))  # type: ignore[arg-type]


def _one_operand(draft: OnnxDraft, node: OnnxNode) -> bool:
    return len(node.inputs) == 1


def _reshape(draft: OnnxDraft, node: OnnxNode) -> bool:
    return same_elements(draft, node.inputs[0], node.outputs[0])


def _always(draft: OnnxDraft, node: OnnxNode) -> bool:
    return True


UNCHANGED: dict[str, Unchanged] = {
    "Identity": _always,
    "Dropout": _dropout,
    "Cast": _cast,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "Resize": _resize,
    "AveragePool": _pool,
    "MaxPool": _pool,
    "Clip": _clip,
    "Relu": _relu,
    "Gather": _gather,
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _one_operand),
}

NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0, "Pow": 1.0}
COMMUTATIVE = ("Add", "Mul")


def operand_and_constant(draft: OnnxDraft, node: OnnxNode) -> tuple[str, str] | None:
    """The computed operand of a node of two operands, and the constant one: the second, or either of `Add` and `Mul`."""
    if len(node.inputs) != 2:
        return None
    one, other = node.inputs
    if draft.is_constant(one) and node.op in COMMUTATIVE:
        one, other = other, one
    return (one, other) if draft.is_constant(other) and not draft.is_constant(one) else None


def _remove(draft: OnnxDraft, node: OnnxNode) -> bool:
    return UNCHANGED[node.op](draft, node) and draft.bypass(node, node.inputs[0])


def _remove_neutral(draft: OnnxDraft, node: OnnxNode) -> bool:
    found = operand_and_constant(draft, node)
    if found is None or not keeps_shape(draft, *found):
        return False
    array = draft.array(found[1])
    return array is not None and bool(np.all(array == NEUTRAL[node.op])) and draft.bypass(node, found[0])


def _rejoin(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A concatenation of all parts of one split."""
    split = draft.producer(node.inputs[0], "Split")
    if split is None or split.outputs != node.inputs or split.integer("axis", 0) != node.integer("axis", 0):
        return False
    return draft.bypass(node, split.inputs[0])


def _remove_concat(draft: OnnxDraft, node: OnnxNode) -> bool:
    return _remove(draft, node) or _rejoin(draft, node)


REMOVALS: dict[str, NodeRewrite] = {
    **dict.fromkeys(UNCHANGED, _remove),
    **dict.fromkeys(NEUTRAL, _remove_neutral),
    "Concat": _remove_concat,
}


def ascending(perm: tuple[int, ...]) -> bool:
    """Whether no axis of a permutation comes before a smaller one."""
    return all(one < other for one, other in pairwise(perm))

"""Reshapes and transposes that follow each other, and shapes that are computed although they are known."""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft, Size
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.no_ops import RESHAPES, ascending

COPIED, INFERRED = 0, -1
"""What stands for a size in the target of a Reshape."""


def target_of(shape: tuple[Size, ...] | None, source: tuple[Size, ...] | None) -> tuple[int, ...] | None:
    """The target of a Reshape from `source` to a shape; None where more than one size is unknown.

    A size that is unknown and the same at the same place of the source is copied; one other can be inferred.
    """
    if shape is None or 0 in shape:
        return None
    before = (*(source or ()), *(None,) * len(shape))
    copied = [isinstance(size, str) and size == old for size, old in zip(shape, before, strict=False)]
    target = tuple(
        size if isinstance(size, int) else COPIED if same else INFERRED
        for size, same in zip(shape, copied, strict=True)
    )
    if target.count(INFERRED) == 0 and target.count(COPIED) == 1:
        target = tuple(INFERRED if size == COPIED else size for size in target)  # as everybody writes it
    return target if target.count(INFERRED) <= 1 else None


def reshape_from(draft: OnnxDraft, node: OnnxNode, source: str) -> bool:
    """Make a Reshape of a node: from `source`, of the same elements in the same order, to the shape that its result has."""
    target = target_of(draft.shape(node.outputs[0]), draft.shape(source))
    if target is None:
        return False
    stored = draft.constant(np.asarray(target, np.int64), f"{node.outputs[0]}/shape")
    node.become("Reshape", {})
    draft.read(node, source, stored)
    return True


def merge_reshapes(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Two reshapes in a row are one from the first one's operand."""
    first = draft.producer(node.inputs[0], *RESHAPES)
    return first is not None and reshape_from(draft, node, first.inputs[0])


def store_target(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A Reshape to a computed shape gets a stored one."""
    return not draft.is_constant(node.inputs[1]) and reshape_from(draft, node, node.inputs[0])


def reshape_before_transpose(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A reshape that adds or drops axes of size 1 behind a transpose goes before it, to the reshape that is there."""
    result = node.inputs[0]
    transpose = draft.producer(result, "Transpose") if draft.read_once(result) else None
    perm = transpose.integers("perm") if transpose else None
    before, after = draft.shape(transpose.inputs[0]) if transpose else None, draft.shape(node.outputs[0])
    if transpose is None or perm is None or before is None or after is None or None in (*before, *after):
        return False
    moved = [axis for axis in perm if before[axis] != 1]
    if [before[axis] for axis in moved] != [size for size in after if size != 1]:
        return False
    places = [place for place, size in enumerate(after) if size != 1]
    target = list(after)
    for place, axis in zip(places, sorted(moved), strict=True):
        target[place] = before[axis]
    stored = target_of(tuple(target), draft.shape(transpose.inputs[0]))
    if draft.producer(transpose.inputs[0], *RESHAPES) is None or stored is None:
        return False
    source_of = dict(zip(sorted(moved), places, strict=True))
    order = dict(zip(places, moved, strict=True))
    reshaped = draft.fresh(f"{node.outputs[0]}/before")
    shape = draft.constant(np.asarray(stored, np.int64), f"{reshaped}/shape")
    draft.add("Reshape", (transpose.inputs[0], shape), (reshaped,))
    draft.set_shape(reshaped, target, transpose.inputs[0])
    node.become("Transpose", {"perm": tuple(source_of[order[p]] if p in order else p for p in range(len(after)))})
    draft.read(node, reshaped)
    draft.remove(transpose)
    return True


def merge_transposes(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Two transposes in a row are one."""
    first = draft.producer(node.inputs[0], "Transpose")
    if first is None or (before := first.integers("perm")) is None or (after := node.integers("perm")) is None:
        return False
    node.set({"perm": tuple(before[axis] for axis in after)})
    draft.read(node, first.inputs[0])
    return True


def transpose_as_reshape(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A transpose that moves nothing but axes of size 1 is a reshape, where it stands next to one."""
    shape, perm = draft.shape(node.inputs[0]), node.integers("perm")
    if shape is None or perm is None or not ascending(tuple(axis for axis in perm if shape[axis] != 1)):
        return False
    beside = draft.producer(node.inputs[0], *RESHAPES), draft.only_reader(node.outputs[0], *RESHAPES)
    return beside != (None, None) and reshape_from(draft, node, node.inputs[0])

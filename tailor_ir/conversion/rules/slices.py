"""Slices, splits and concatenations that belong together."""

from dataclasses import dataclass

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode

SPLIT_SIZES_AS_INPUT = 13
"""The opset from which on a Split reads its sizes."""
FAR = 2**31 - 1
"""Ends from here on stand for the end of the axis."""


@dataclass(frozen=True, slots=True)
class _Cut:
    start: int
    end: int
    step: int


def cuts_of(draft: OnnxDraft, node: OnnxNode) -> dict[int, _Cut] | None:
    """What a Slice takes of each axis that it cuts, None where that is computed."""
    rank = draft.rank(node.inputs[0])
    rows = [draft.integers(name) if name else () for name in node.inputs[1:5]]
    if len(node.inputs) < 3 or rank is None or any(row is None for row in rows):
        return None
    starts, ends, axes, steps = ([row or () for row in rows] + [(), ()])[:4]
    axes = tuple(axis % rank for axis in axes) or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    return {axis: _Cut(*cut) for axis, *cut in zip(axes, starts, ends, steps, strict=True)}


def merge_slices(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Two slices in a row of different axes are one."""
    first = draft.producer(node.inputs[0], "Slice")
    if first is None or not draft.read_once(node.inputs[0]):
        return False
    cuts, before = cuts_of(draft, node), cuts_of(draft, first)
    if cuts is None or before is None or cuts.keys() & before.keys():
        return False
    merged = before | cuts
    rows = ([cut.start for cut in merged.values()], [cut.end for cut in merged.values()], list(merged))
    steps = [cut.step for cut in merged.values()]
    names = (draft.constant(np.asarray(row, np.int64), f"{node.outputs[0]}/cut") for row in (*rows, steps))
    draft.read(node, first.inputs[0], *names)
    return True


def merge_concats(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A concatenation inside another one along the same axis becomes a part of it."""
    rank = draft.rank(node.outputs[0])
    if rank is None:
        return False
    for position, name in enumerate(node.inputs):
        inner = draft.producer(name, "Concat")
        if inner is None or not draft.read_once(name) or node.inputs.count(name) > 1:
            continue
        if inner.integer("axis", 0) % rank == node.integer("axis", 0) % rank:
            draft.read(node, *node.inputs[:position], *inner.inputs, *node.inputs[position + 1 :])
            draft.remove(inner)
            return True
    return False


def split_slices(draft: OnnxDraft, node: OnnxNode) -> bool:
    """Slices that take a value apart along one axis, piece by piece, are one Split. Begins with the first piece."""
    source = node.inputs[0]
    cuts, shape = cuts_of(draft, node), draft.shape(source)
    if draft.opset < SPLIT_SIZES_AS_INPUT or cuts is None or shape is None or len(cuts) != 1:
        return False
    (axis,) = cuts
    size = shape[axis]
    if not isinstance(size, int) or cuts[axis].start not in (0, -size):
        return False
    pieces: dict[int, tuple[int, OnnxNode]] = {}
    for other in draft.readers(source):
        piece = _piece(draft, other, axis, size) if other.standard and other.op == "Slice" else None
        if piece is not None:
            pieces.setdefault(piece[0], (piece[1], other))
    chain, position = [], 0
    while position in pieces:
        end, piece_node = pieces[position]
        chain.append((end - position, piece_node))
        position = end
    if position != size or len(chain) < 2 or any(other.outputs[0] in draft.kept for _, other in chain):
        return False
    sizes = draft.constant(np.asarray([length for length, _ in chain], np.int64), f"{source}/split")
    results = [other.outputs[0] for _, other in chain]
    for _, other in chain:
        draft.remove(other)
    draft.add("Split", (source, sizes), results, {"axis": axis})
    return True


def _piece(draft: OnnxDraft, node: OnnxNode, axis: int, size: int) -> tuple[int, int] | None:
    """Beginning and end of the piece that a Slice cuts out along this axis alone."""
    cuts = cuts_of(draft, node)
    if cuts is None or cuts.keys() != {axis} or cuts[axis].step != 1:
        return None
    start, end, _ = slice(cuts[axis].start, min(cuts[axis].end, FAR)).indices(size)
    return (start, end) if start < end else None

"""Rules for reshapes, transposes and known shapes, for reductions, and for slices, splits and concatenations.

Reshapes and transposes that follow each other are merged, and computed shapes that are known are stored. Reductions
drop or keep their axes without a node of its own. Slices, splits and concatenations that belong together are joined.
"""

from dataclasses import dataclass

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft, Size
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.no_ops import RESHAPES, ascending

REDUCTIONS = (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
)
POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
AXES_AS_INPUT = 18
"""The opset from which on all reductions read their axes; ReduceSum does from 13 on."""


def reads_axes(op: str, opset: int) -> bool:
    """Whether a reduction's axes are its second operand."""
    return opset >= (13 if op == "ReduceSum" else AXES_AS_INPUT)


def reduced_axes(draft: OnnxDraft, node: OnnxNode) -> tuple[int, ...] | None:
    """The axes that a node averages or sums up, ascending; None where they are computed, or the rank is not known."""
    rank = draft.rank(node.inputs[0])
    if rank is None or node.integer("noop_with_empty_axes", 0):
        return None
    if node.op in POOLS:
        return tuple(range(2, rank))
    given = draft.integers(node.input(1)) if reads_axes(node.op, draft.opset) else node.integers("axes")
    if not given and reads_axes(node.op, draft.opset) and node.input(1):
        return None
    return tuple(sorted(axis % rank for axis in given)) if given else tuple(range(rank))


def fuse_kept_axes(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A reduction and the reshape behind it that drops the reduced axes, or puts them back, are one reduction."""
    after = draft.only_reader(node.outputs[0], *RESHAPES)
    axes, shape = reduced_axes(draft, node), draft.shape(node.inputs[0])
    if after is None or axes is None or shape is None or after.inputs[0] != node.outputs[0]:
        return False
    keeps = not (node.op in POOLS or node.integer("keepdims", 1))
    wanted: tuple[Size, ...] = (
        tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        if keeps
        else tuple(size for axis, size in enumerate(shape) if axis not in axes)
    )
    if not _is_shape(draft.shape(after.outputs[0]), wanted) or not draft.bypass(after, node.outputs[0]):
        return False
    _reduce(draft, node, axes, keeps)
    draft.set_shape(node.outputs[0], wanted, node.inputs[0])
    return True


def _is_shape(found: tuple[Size, ...] | None, wanted: tuple[Size, ...]) -> bool:
    """Whether a shape is the wanted one; one size may be unknown, since the number of elements is known to be equal."""
    if found is None or len(found) != len(wanted):
        return False
    return sum(one is None or one != other for one, other in zip(found, wanted, strict=True)) <= int(
        any(not isinstance(size, int) for size in (*found, *wanted))
    )


def _reduce(draft: OnnxDraft, node: OnnxNode, axes: tuple[int, ...], keeps: bool) -> None:
    if node.op not in POOLS:
        node.set({"keepdims": int(keeps)})
        return
    write_reduction(draft, node, POOLS[node.op], axes, keeps)


def write_reduction(draft: OnnxDraft, node: OnnxNode, op: str, axes: tuple[int, ...], keeps: bool) -> None:
    """Make a reduction of a node's first operand of it."""
    if reads_axes(op, draft.opset):
        stored = draft.constant(np.asarray(axes, np.int64), f"{node.outputs[0]}/axes")
        node.become(op, {"keepdims": int(keeps)})
        draft.read(node, node.inputs[0], stored)
    else:
        node.become(op, {"axes": axes, "keepdims": int(keeps)})
        draft.read(node, node.inputs[0])


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
    """The part that a Slice takes of each axis that it cuts; None if it is computed."""
    rank = draft.rank(node.inputs[0])
    rows = [draft.integers(name) if name else () for name in node.inputs[1:5]]
    if len(node.inputs) < 3 or rank is None or any(row is None for row in rows):
        return None
    starts, ends, axes, steps = ([row or () for row in rows] + [(), ()])[:4]
    axes = tuple(axis % rank for axis in axes) or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    return {
        axis: _Cut(start=start, end=end, step=step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    }


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

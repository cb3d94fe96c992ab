"""Reductions whose reduced axes are dropped or put back by a node of their own."""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft, Size
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.no_ops import RESHAPES

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

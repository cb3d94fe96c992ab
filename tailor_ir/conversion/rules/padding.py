"""Padding before convolutions and pools, which can pad by themselves."""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.no_ops import NEVER_NEGATIVE


def fold_padding(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A convolution or pool takes over the padding of its operand. `node`: Conv, AveragePool or MaxPool."""
    pad = draft.producer(node.inputs[0], "Pad")
    if pad is None or not draft.read_once(node.inputs[0]) or pad.text("mode", "constant") != "constant":
        return False
    rank, pads = draft.rank(pad.inputs[0]), _pads(draft, pad)
    if (
        rank is None
        or pads is None
        or len(pads) != 2 * rank
        or min(pads) < 0
        or any((*pads[:2], *pads[rank : rank + 2]))
    ):
        return False
    own = node.integers("pads") or (0,) * (2 * rank - 4)
    unset = node.text("auto_pad", "NOTSET")
    if unset not in ("NOTSET", "VALID") or not _allowed(draft, node, pad, own):
        return False
    if unset == "VALID":
        own = (0,) * (2 * rank - 4)
    added = (*pads[2:rank], *pads[rank + 2 :])
    total = tuple(one + other for one, other in zip(own, added, strict=True))
    if node.op != "Conv" and not _within_kernel(node, total):
        return False
    node.drop("auto_pad")
    node.set({"pads": total} | ({"count_include_pad": 1} if node.op == "AveragePool" else {}))
    draft.read(node, pad.inputs[0], *node.inputs[1:])
    return True


def _pads(draft: OnnxDraft, pad: OnnxNode) -> tuple[int, ...] | None:
    """Begins and ends of all axes; None where they are computed, or given for some axes."""
    if draft.opset < 11:
        return pad.integers("pads")
    return None if pad.input(3) else draft.integers(pad.input(1))


def _allowed(draft: OnnxDraft, node: OnnxNode, pad: OnnxNode, own: tuple[int, ...]) -> bool:
    """Whether what is put around the operand is what the node itself would put there."""
    value = pad.number("value", 0.0) if draft.opset < 11 else (draft.scalar(pad.input(2)) if pad.input(2) else 0.0)
    if node.op == "Conv":
        return value == 0
    if node.integer("ceil_mode", 0) or {*(node.integers("dilations") or (1,))} != {1}:
        return False
    if node.op == "AveragePool":
        return value == 0 and (bool(node.integer("count_include_pad", 0)) or not any(own))
    if value is not None and value <= float(np.finfo(np.float32).min):
        return True
    return value == 0 and draft.producer(pad.inputs[0], *NEVER_NEGATIVE) is not None


def _within_kernel(node: OnnxNode, pads: tuple[int, ...]) -> bool:
    """Whether each window has an element of the operand in it; runtimes refuse other pads."""
    kernel = node.integers("kernel_shape") or ()
    return all(pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=True))

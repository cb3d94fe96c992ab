"""Rules for padding: convolutions and pools pad by themselves, and lose positions of kernels that no input reaches.

On small maps such positions lie over the padding alone, wherever the kernel stands.
"""

import numpy as np

from tailor_ir.conversion.draft import OnnxDraft, all_known
from tailor_ir.conversion.nodes import OnnxNode
from tailor_ir.conversion.rules.no_ops import NEVER_NEGATIVE


def trim_kernel(draft: OnnxDraft, node: OnnxNode) -> bool:
    """A convolution loses the outer positions of its kernel that read padding in every window. `node`: Conv."""
    shape = draft.shape(node.inputs[1])
    rank = len(shape) - 2 if shape is not None else 0
    before, after = (draft.shape(name) for name in (node.inputs[0], node.outputs[0]))
    if shape is None or before is None or after is None or node.text("auto_pad", "NOTSET") != "NOTSET":
        return False
    known = (*shape[2:], *before[2:], *after[2:])
    if len(known) != 3 * rank or not all_known(known):
        return False
    sizes = [int(size or 0) for size in known]
    pads = node.integers("pads") or (0,) * (2 * rank)
    strides, dilations = (node.integers(name) or (1,) * rank for name in ("strides", "dilations"))
    reached = [
        _reached(*axis, pads[at], pads[at + rank])
        for at, axis in enumerate(
            zip(sizes[:rank], sizes[rank : 2 * rank], sizes[2 * rank :], strides, dilations, strict=True)
        )
    ]
    kernel = tuple(len(taps) for taps in reached)
    if kernel == tuple(sizes[:rank]) or not (weight := _trimmed(draft, node.inputs[1], reached)):
        return False
    begins = tuple(pads[at] - taps.start * dilations[at] for at, taps in enumerate(reached))
    ends = tuple(pads[at + rank] - (sizes[at] - taps.stop) * dilations[at] for at, taps in enumerate(reached))
    node.set({"kernel_shape": kernel, "pads": (*begins, *ends)})
    draft.read(node, node.inputs[0], weight, *node.inputs[2:])
    return True


def _reached(kernel: int, size: int, windows: int, stride: int, dilation: int, begin: int, end: int) -> range:
    """The positions of a kernel from the first to the last that some window has over the map; no padding becomes negative."""
    reached = [
        tap
        for tap in range(kernel)
        if any(0 <= window * stride + tap * dilation - begin < size for window in range(windows))
    ]
    if not reached:
        return range(kernel)
    first = min(reached[0], begin // dilation)
    last = max(reached[-1], kernel - 1 - end // dilation)
    return range(first, last + 1)


def _trimmed(draft: OnnxDraft, name: str, reached: list[range]) -> str | None:
    """The name of a weight's part, stored or made of equal numbers; None for weights that are computed otherwise."""
    array = draft.array(name)
    if array is not None:
        part = array
        for axis, taps in enumerate(reached, start=2):
            part = np.take(part, taps, axis)
        return draft.constant(np.ascontiguousarray(part), f"{name}/reached")
    filled = draft.producer(name, "ConstantOfShape")
    shape = None if filled is None else draft.integers(filled.inputs[0])
    if filled is None or shape is None or not draft.read_once(name):
        return None
    part_shape = np.asarray((*shape[:2], *map(len, reached)), np.int64)
    draft.read(filled, draft.constant(part_shape, f"{name}/reached"))
    return name


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

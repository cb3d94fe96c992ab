"""Kernels lose their outer positions that lie over padding alone, wherever they stand: small maps have such kernels."""

import numpy as np
import onnx_graphsurgeon as gs


def trim_convolutions(graph: gs.Graph) -> int:
    """Take the positions that no input reaches out of the kernels of convolutions; how many convolutions.

    Weights are stored, or made of equal numbers by ConstantOfShape. A convolution over a map of unknown size stays.
    """
    return sum([_trim(node) for node in graph.nodes if node.op == "Conv" and node.domain in (None, "", "ai.onnx")])


def _trim(node: gs.Node) -> bool:
    shapes = [tensor.shape for tensor in (node.inputs[1], node.inputs[0], node.outputs[0])]
    if any(shape is None for shape in shapes) or node.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return False
    rank = len(shapes[0]) - 2
    if any(
        len(shape) != rank + 2 or not all(isinstance(size, int) and size > 0 for size in shape[2:]) for shape in shapes
    ):
        return False
    pads = node.attrs.get("pads") or [0] * (2 * rank)
    strides, dilations = (node.attrs.get(name) or [1] * rank for name in ("strides", "dilations"))
    sizes = zip(*(shape[2:] for shape in shapes), strides, dilations, pads[:rank], pads[rank:], strict=True)
    reached = [_reached(*axis) for axis in sizes]
    kernel = [len(taps) for taps in reached]
    if kernel == list(shapes[0][2:]) or not _take(node, reached):
        return False
    begins = [pad - taps.start * by for pad, taps, by in zip(pads[:rank], reached, dilations, strict=True)]
    ends = [
        pad - (size - taps.stop) * by
        for pad, size, taps, by in zip(pads[rank:], shapes[0][2:], reached, dilations, strict=True)
    ]
    node.attrs |= {"kernel_shape": kernel, "pads": begins + ends}
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
    return range(min(reached[0], begin // dilation), max(reached[-1], kernel - 1 - end // dilation) + 1)


def _take(node: gs.Node, reached: list[range]) -> bool:
    """Let a convolution read a part of its weight; False for a weight that is computed otherwise."""
    weight, name = node.inputs[1], f"{node.outputs[0].name}/reached"
    if isinstance(weight, gs.Constant):
        part = weight.values[(slice(None), slice(None), *(slice(taps.start, taps.stop) for taps in reached))]
        node.inputs[1] = gs.Constant(name, np.ascontiguousarray(part))
        return True
    fill = weight.inputs[0] if weight.inputs and len(weight.outputs) == 1 else None
    if fill is None or fill.op != "ConstantOfShape" or not isinstance(fill.inputs[0], gs.Constant):
        return False
    sizes = (*fill.inputs[0].values[:2], *map(len, reached))
    fill.inputs[0] = gs.Constant(name, np.asarray(sizes, np.int64))
    weight.shape = list(sizes)
    return True

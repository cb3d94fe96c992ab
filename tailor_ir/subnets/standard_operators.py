"""The IR's own operators as standard ONNX of opset 17."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from tailor_ir.dims import FACTORS, FILTERED
from tailor_ir.graph import Attribute, Node
from tailor_ir.ops.deformable import places, settings
from tailor_ir.ops.resample import resizing_matrices
from tailor_ir.ops.spectra import transform_matrix


class _Writer:
    """Nodes of one operator, named after it."""

    def __init__(self, name: str, outputs: Sequence[gs.Tensor]) -> None:
        self.name, self.outputs = name, outputs
        self.nodes: list[gs.Node] = []

    def add(
        self, op: str, *inputs: "gs.Tensor | float | np.ndarray", last: bool = False, **attributes: object
    ) -> gs.Tensor:
        """Add one node; `last`: its result is the operator's own. Numbers become constants."""
        number = len(self.nodes)
        output = self.outputs[0] if last else gs.Variable(f"{self.name}/{number}", np.float32)
        operands = [
            i if isinstance(i, gs.Tensor) else gs.Constant(f"{self.name}/{number}/{k}", np.asarray(i, np.float32))
            for k, i in enumerate(inputs)
        ]
        self.nodes.append(gs.Node(op, f"{self.name}/{op}{number}", attrs=attributes, inputs=operands, outputs=[output]))
        return output

    def reshape(self, x: gs.Tensor, shape: Sequence[int], last: bool = False) -> gs.Tensor:
        target = gs.Constant(f"{self.name}/shape{len(self.nodes)}", np.asarray(shape, np.int64))
        return self.add("Reshape", x, target, last=last)

    def slice(self, x: gs.Tensor, start: int, stop: int, axis: int) -> gs.Tensor:
        """A range of one axis."""
        ranges = [
            gs.Constant(f"{self.name}/{start}/{i}", np.asarray([v], np.int64))
            for i, v in enumerate((start, stop, axis))
        ]
        return self.add("Slice", x, *ranges)

    def spread(self, vector: gs.Tensor, axis: int, rank: int) -> gs.Tensor:
        """A vector along one axis of a tensor of `rank`."""
        shape = (-1, *(1,) * (rank - 1 - axis % rank))
        if len(shape) == 1:
            return vector
        if isinstance(vector, gs.Constant):
            return gs.Constant(f"{vector.name}/spread{rank}", vector.values.reshape(shape))
        return self.reshape(vector, shape)


END = int(np.iinfo(np.int64).max)
Inputs = Sequence[gs.Tensor]
Attributes = dict[str, Attribute]


def _linear(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    x, weight, *bias = inputs
    if x.shape is not None and len(x.shape) == 2:
        w.add("Gemm", *inputs, last=True, transB=1)
        return
    transposed: gs.Tensor
    if isinstance(weight, gs.Constant):
        transposed = gs.Constant(f"{weight.name}/transposed", np.ascontiguousarray(weight.values.T))
    else:
        transposed = w.add("Transpose", weight, perm=[1, 0])
    product = w.add("MatMul", x, transposed, last=not bias)
    if bias:
        w.add("Add", product, *bias, last=True)


def _gelu(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    (x,) = inputs
    if attributes.get("approximate") == "tanh":
        cube = w.add("Mul", w.add("Mul", w.add("Mul", x, x), x), 0.044715)
        curve = w.add("Tanh", w.add("Mul", w.add("Add", x, cube), math.sqrt(2 / math.pi)))
    else:
        curve = w.add("Erf", w.add("Div", x, math.sqrt(2)))
    w.add("Mul", w.add("Mul", x, w.add("Add", curve, 1.0)), 0.5, last=True)


def _embedding(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    w.add("Gather", inputs[1], inputs[0], last=True, axis=0)


def _silu(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    w.add("Mul", inputs[0], w.add("Sigmoid", inputs[0]), last=True)


def _mish(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    w.add("Mul", inputs[0], w.add("Tanh", w.add("Softplus", inputs[0])), last=True)


def _group_norm(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    x, *vectors = inputs
    groups = int(attributes["num_groups"])  # type: ignore[arg-type]
    ones, zeros = (gs.Constant(f"{w.name}/{v}", np.full(groups, v, np.float32)) for v in (1.0, 0.0))
    grouped = w.reshape(x, (0, groups, -1))
    normal = w.add("InstanceNormalization", grouped, ones, zeros, epsilon=attributes["epsilon"])
    y = w.reshape(normal, tuple(x.shape), last=not vectors)
    for index, (op, vector) in enumerate(zip(("Mul", "Add"), vectors, strict=False)):
        y = w.add(op, y, w.spread(vector, 1, len(x.shape)), last=index == len(vectors) - 1)


def _rms_norm(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    x, scale = inputs
    axis = int(attributes["axis"])  # type: ignore[arg-type]
    mean = w.add("ReduceMean", w.add("Mul", x, x), axes=[axis], keepdims=1)
    root = w.add("Sqrt", w.add("Add", mean, float(attributes["epsilon"])))  # type: ignore[arg-type]
    w.add("Mul", w.add("Div", x, root), w.spread(scale, axis, len(x.shape)), last=True)


def _roll(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    axis, shift = int(attributes["axis"]), int(attributes["shift"])  # type: ignore[arg-type]
    if not shift:
        w.add("Identity", inputs[0], last=True)
        return
    parts = [w.slice(inputs[0], start, stop, axis) for start, stop in ((shift, END), (0, shift))]
    w.add("Concat", *parts, last=True, axis=axis)


def _pad(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    """Circular padding, which opset 17 lacks, as slices and a concatenation along each axis."""
    if attributes.get("mode") != "wrap":
        w.nodes.append(gs.Node("Pad", w.name, attrs=dict(attributes), inputs=list(inputs), outputs=list(w.outputs)))
        return
    x, pads = inputs[0], inputs[1].values.reshape(2, -1)
    axes = [axis for axis in range(pads.shape[1]) if pads[:, axis].any()]
    for axis in axes:
        before, after = (int(number) for number in pads[:, axis])
        size = inputs[0].shape[axis] + min(before, 0) + min(after, 0)
        if min(before, after) < 0:
            x = w.slice(x, max(0, -before), min(after, 0) or END, axis)
        # an axis that is shorter than its padding is repeated
        (copies_before, rest_before), (copies_after, rest_after) = (
            divmod(max(0, added), size) for added in (before, after)
        )
        parts = [w.slice(x, -rest_before, END, axis)] if rest_before else []
        parts += [x] * (copies_before + 1 + copies_after)
        parts += [w.slice(x, 0, rest_after, axis)] if rest_after else []
        x = w.add("Concat", *parts, last=axis == axes[-1], axis=axis)


def _batch_standardization(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    x, scale, bias = inputs
    rank = len(x.shape)
    others = [axis for axis in range(rank) if axis != 1]
    centred = w.add("Sub", x, w.add("ReduceMean", x, axes=others, keepdims=1))
    variance = w.add("ReduceMean", w.add("Mul", centred, centred), axes=others, keepdims=1)
    deviation = w.add("Sqrt", w.add("Add", variance, float(attributes["epsilon"])))  # type: ignore[arg-type]
    scaled = w.add("Mul", w.add("Div", centred, deviation), w.spread(scale, 1, rank))
    w.add("Add", scaled, w.spread(bias, 1, rank), last=True)


def _fourier_transform(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    (x,) = inputs
    axis, rank = int(attributes["axis"]), len(x.shape)  # type: ignore[arg-type]
    before, after = ((tensor.shape[axis], tensor.shape[-1]) for tensor in (x, w.outputs[0]))
    matrix = transform_matrix(before, after, inverse=bool(attributes.get("inverse", 0)))
    others = [i for i in range(rank - 1) if i != axis]
    rows = [x.shape[i] for i in others]
    turned = w.add("Transpose", x, perm=[*others, axis, rank - 1])
    flat = w.reshape(turned, (*rows, before[0] * before[1]))
    product = w.add("MatMul", flat, gs.Constant(f"{w.name}/matrix", matrix))
    apart = w.reshape(product, (*rows, *after))
    w.add("Transpose", apart, last=True, perm=[*range(axis), rank - 2, *range(axis, rank - 2), rank - 1])


def _deformable(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    """Entries of the kernel as channels, read by GridSample, and a 1×1 convolution of them."""
    x, weight, offset, *others = inputs
    bias = [other for other in others[:1] if not other.is_empty()]
    node = Node(name=w.name, op="DeformConv", inputs=(), outputs=(), attributes=tuple(attributes.items()))
    (samples, channels, *size), kernel, result = x.shape, tuple(weight.shape[2:]), tuple(offset.shape[2:])
    entries = math.prod(kernel)
    sets = offset.shape[1] // (2 * entries)
    scale = np.asarray([2 / side for side in size], np.float32)
    base = places(kernel, *settings(node), result) * scale + scale / 2 - 1
    apart = w.reshape(offset, (samples, sets, entries, 2, *result))
    moved = w.add("Add", w.add("Mul", w.add("Transpose", apart, perm=[0, 1, 2, 4, 5, 3]), scale), base)
    order = gs.Constant(f"{w.name}/order", np.asarray([1, 0], np.int64))  # x before y
    turned = w.add("Gather", moved, order, axis=5)
    grid = w.reshape(turned, (samples * sets, entries * result[0], result[1], 2))
    image = w.reshape(x, (samples * sets, channels // sets, *size))
    read = w.add("GridSample", image, grid, mode="bilinear", padding_mode="zeros", align_corners=0)
    if len(others) > 1 and not others[1].is_empty():
        read = w.add("Mul", read, w.reshape(others[1], (samples * sets, 1, entries * result[0], result[1])))
    columns = w.reshape(read, (samples, channels * entries, *result))
    flat: gs.Tensor = w.reshape(weight, (weight.shape[0], -1, 1, 1))
    if isinstance(weight, gs.Constant):
        flat = gs.Constant(f"{weight.name}/flat", weight.values.reshape(len(weight.values), -1, 1, 1))
    w.add("Conv", columns, flat, *bias, last=True, group=int(attributes["group"]))  # type: ignore[arg-type]


def _filtered_resize(w: _Writer, inputs: Inputs, attributes: Attributes) -> None:
    (x,) = inputs
    node = Node(name=w.name, op=FILTERED, inputs=(), outputs=(), attributes=tuple(attributes.items()))
    factors = attributes[FACTORS]
    assert isinstance(factors, tuple), factors
    matrices = resizing_matrices(node, x.shape, w.outputs[0].shape, factors)  # type: ignore[arg-type]
    rank = len(x.shape)
    for axis, matrix in matrices.items():
        is_last = axis == max(matrices)
        order = [i for i in range(rank) if i != axis] + [axis]
        back = [order.index(i) for i in range(rank)]
        turned = w.add("Transpose", x, perm=order)
        product = w.add("MatMul", turned, gs.Constant(f"{w.name}/matrix{axis}", np.ascontiguousarray(matrix.T)))
        x = w.add("Transpose", product, last=is_last, perm=back)
    if not matrices:
        w.add("Identity", x, last=True)


WRITERS: dict[str, Callable[[_Writer, Inputs, Attributes], None]] = {
    "BatchStandardization": _batch_standardization,
    "DFT": _fourier_transform,
    "DeformConv": _deformable,
    "Embedding": _embedding,
    "FilteredResize": _filtered_resize,
    "Gelu": _gelu,
    "GroupNorm": _group_norm,
    "Linear": _linear,
    "Mish": _mish,
    "Pad": _pad,
    "RmsNorm": _rms_norm,
    "Roll": _roll,
    "Silu": _silu,
}


def standard_nodes(op: str, name: str, inputs: Inputs, outputs: Inputs, attributes: Attributes) -> list[gs.Node]:
    """Standard ONNX nodes for an operator that is specific to the IR."""
    writer = _Writer(name, outputs)
    WRITERS[op](writer, inputs, attributes)
    return writer.nodes


TRUTHS = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"))
POSITIONS = frozenset(("ArgMax", "ArgMin"))


def set_element_types(op: str, inputs: Inputs, outputs: Inputs, attributes: Attributes) -> None:
    """Set the element types of the results, which follow from the operator and its operands; look-up positions are integers."""
    found: object
    if op == "Embedding":
        if isinstance(inputs[0], gs.Variable) and inputs[0].dtype == np.float32:
            inputs[0].dtype = np.int64
        found = inputs[1].dtype
    elif op in TRUTHS:
        found = np.bool_
    elif op in POSITIONS:
        found = np.int64
    elif op == "Cast":
        found = helper.tensor_dtype_to_np_dtype(int(attributes["to"]))  # type: ignore[arg-type]
    else:
        found = inputs[1 if op == "Where" else 0].dtype
    for output in outputs:
        if isinstance(output, gs.Variable):
            output.dtype = found
    if op in ("MaxPool", "TopK") and len(outputs) > 1 and isinstance(outputs[1], gs.Variable):
        outputs[1].dtype = np.int64


def guard_padding(op: str, inputs: Inputs, attributes: Attributes) -> None:
    """Pad by almost zero in front of a pooling into which onnxruntime would merge a zero padding wrongly.

    In a MaxPool it means minus infinity. An AveragePool rounds sizes up otherwise, and may not pad by as much as its kernel.
    """
    pad = inputs[0].inputs[0] if inputs[0].inputs else None
    if pad is None or pad.op != "Pad" or pad.attrs.get("mode", "constant") != "constant":
        return
    if op == "AveragePool" and not attributes.get("ceil_mode") and isinstance(pad.inputs[1], gs.Constant):
        kernel: Any = attributes["kernel_shape"]
        own = np.reshape(attributes.get("pads", (0,) * 2 * len(kernel)), (2, -1))
        sides = pad.inputs[1].values.reshape(2, -1)[:, 2:] + own
        if (sides < kernel).all():
            return
    value = pad.inputs[2].values if len(pad.inputs) > 2 and isinstance(pad.inputs[2], gs.Constant) else np.zeros(())
    if not value.any():
        pad.inputs = [*pad.inputs[:2], gs.Constant(f"{pad.name}/value", np.full((), np.finfo(np.float32).tiny))]


MOVED_THROUGH = frozenset(
    ("Identity", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "Neg", "Abs", "Sqrt", "Exp", "Erf", "Cast")
)
"""Operators through which onnxruntime moves a Transpose towards the outputs, besides sums and products with constants."""


def guard_resizing(name: str, inputs: Inputs, outputs: Inputs, attributes: Attributes) -> tuple[Inputs, list[gs.Node]]:
    """Inputs of a Resize, and a product with ones in front of it if onnxruntime would refuse the graph that it makes itself.

    It moves a Transpose in front of a Resize behind it, and resizes linearly along neighbouring axes of four alone.
    """
    x, *rest = inputs
    perm = _moved_order(x) if attributes.get("mode", "nearest") != "nearest" else None
    if perm is None:
        return inputs, []
    resized = {perm[axis] for axis, (old, new) in enumerate(zip(x.shape, outputs[0].shape, strict=True)) if old != new}
    several = [axis for axis in range(1, len(perm)) if x.shape[axis] > 1]
    if len(perm) < 4 or resized <= {2, 3} or resized <= {1, 2} or not several:
        return inputs, []
    ones = gs.Constant(f"{name}/ones", np.ones(x.shape[several[-1] :], np.float32))  # a single one would be taken away
    kept = gs.Variable(f"{name}/kept", x.dtype, x.shape)
    return (kept, *rest), [gs.Node("Mul", f"{name}/Mul", inputs=[x, ones], outputs=[kept])]


def _moved_order(x: gs.Tensor) -> list[int] | None:
    """The order of axes of a Transpose that onnxruntime may move behind the reader of a value; None if there is none."""
    while x.inputs:
        node = x.inputs[0]
        if node.op == "Transpose":
            return list(node.attrs["perm"])
        read = [each for each in node.inputs if not isinstance(each, gs.Constant)]
        same = node.op == "Reshape" and tuple(read[0].shape or ()) == tuple(x.shape or ())
        if len(read) != 1 or not (same or node.op in MOVED_THROUGH or node.op in ("Add", "Sub", "Mul", "Div")):
            return None
        (x,) = read
    return None

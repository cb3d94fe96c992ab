"""Functions that exporters cannot express in standard operators, rewritten in operators that the IR knows.

Rewrite operators of ONNX files in terms of others: attention, Col2Im, spectra, backward RNNs, ONNX's own functions.
"""

from collections.abc import Collection, Sequence
from math import prod

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import inliner

from tailor_ir.errors import ImportFailed

DEFINED_BY_OTHERS = frozenset(
    ("AffineGrid", "CastLike", "CausalConvWithState", "LinearAttention", "MeanVarianceNormalization", "RotaryEmbedding")
)
"""Operators that are replaced by ONNX's function definition of them."""
DEFAULT_DOMAIN = ("", "ai.onnx")


def inline_defined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ONNX's function definitions inlined for operators that have one."""
    found = {node.op_type for node in model.graph.node if node.domain in DEFAULT_DOMAIN and _is_defined_by_others(node)}
    if not found and all(node.op_type != "STFT" for node in model.graph.node):
        return model
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    _write_defaults(typed, found | {"STFT"})
    if not found:
        return typed
    names = [("", name) for name in sorted(found)]
    typed.graph.value_info.extend(  # definitions depend on operand types, and the inliner ignores initializers
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
    )
    try:
        return inliner.inline_selected_functions(typed, names, inline_schema_functions=True)
    except Exception as error:  # C++ assertions come as RuntimeError
        raise ImportFailed(
            f"operator '{min(found)}': its definition cannot be read ({str(error).splitlines()[0]}); "
            "export the network with an opset in which it is written in other operators"
        ) from error


def _write_defaults(model: onnx.ModelProto, operators: Collection[str]) -> None:
    """Write out attributes that nodes of some operators leave out, in place.

    The inliner loses their defaults, and shape inference uses another default for `onesided` of an STFT.
    """
    opset = next(each.version for each in model.opset_import if each.domain in DEFAULT_DOMAIN)
    for node in (node for node in model.graph.node if node.op_type in operators):
        for name, attribute in onnx.defs.get_schema(node.op_type, opset).attributes.items():
            if attribute.default_value.type and all(given.name != name for given in node.attribute):
                node.attribute.append(attribute.default_value)


def _is_defined_by_others(node: onnx.NodeProto) -> bool:
    if node.op_type == "RMSNormalization":  # the IR knows the operator along the last axis
        return next((a.i for a in node.attribute if a.name == "axis"), -1) != -1
    return node.op_type in DEFINED_BY_OTHERS


class Builder:
    """Adds the nodes that replace one operator, with results of known shapes."""

    def __init__(self, graph: gs.Graph, node: gs.Node) -> None:
        self.graph, self.name = graph, node.name or next(one.name for one in node.outputs if one.name)
        self.dtype, self.count = node.inputs[0].dtype, 0

    def add(self, op: str, inputs: Sequence[gs.Tensor], shape: Sequence[int], **attributes: object) -> gs.Variable:
        self.count += 1
        name = f"{self.name}/{self.count}"
        output = gs.Variable(name, self.dtype, list(shape))
        self.graph.nodes.append(gs.Node(op, name, attributes, list(inputs), [output]))
        return output

    def constant(self, values: object, dtype: object = None) -> gs.Constant:
        self.count += 1
        return gs.Constant(f"{self.name}/{self.count}", np.asarray(values, dtype or self.dtype))  # type: ignore[arg-type]

    def reshape(self, x: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        return self.add("Reshape", [x, self.constant(shape, np.int64)], shape)

    def transpose(self, x: gs.Tensor, order: Sequence[int]) -> gs.Tensor:
        return self.add("Transpose", [x], [x.shape[i] for i in order], perm=list(order))

    def finish(self, node: gs.Node, *results: gs.Tensor) -> None:
        """Redirect readers of the node to the results."""
        for target, result in zip(list(node.outputs), results, strict=False):
            redirect(self.graph, target, result)
        node.inputs.clear()
        node.outputs.clear()


def redirect(graph: gs.Graph, target: gs.Tensor, source: gs.Tensor) -> None:
    """Let all readers of a tensor read another one."""
    for reader in list(target.outputs):
        reader.inputs = [source if operand is target else operand for operand in reader.inputs]
    graph.outputs = [source if output is target else output for output in graph.outputs]


def has_fixed_shape(tensor: gs.Tensor) -> bool:
    """Whether all sizes of a tensor are known."""
    return tensor.shape is not None and all(isinstance(size, int) for size in tensor.shape)


def place_of(node: gs.Node) -> str:
    """A node as refusals name it."""
    return f"operator '{node.op}' at '{node.name or node.outputs[0].name}'"


def write_out(graph: gs.Graph) -> None:
    """Rewrite attention, Col2Im, spectra of signals, and backward recurrent layers as other operators."""
    for node in list(graph.nodes):
        if node.op in WRITERS:
            WRITERS[node.op](graph, node)
    graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _attention(graph: gs.Graph, node: gs.Node) -> None:
    """softmax(scale · Q Kᵀ + mask) V. Keys and values may have fewer heads than queries. Source: ONNX, Attention-23.

    Operands are (B, N, heads · size) or (B, heads, N, size).
    """
    b = Builder(graph, node)
    if any(output.outputs for output in node.outputs[3:]):
        raise ImportFailed(
            f"operator 'Attention' at '{b.name}': gives its scores as well; allowed: attention without this result"
        )
    is_flat = len(node.inputs[0].shape) == 3
    counts = [int(node.attrs.get(name, 0)) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    q, k, v = (_heads(b, x, count) if is_flat else x for x, count in zip(node.inputs[:3], counts, strict=True))
    earlier = [*node.inputs[4:6]] if len(node.inputs) > 5 and not node.inputs[4].is_empty() else []
    if earlier:
        k, v = (
            b.add("Concat", [old, new], (*new.shape[:2], old.shape[2] + new.shape[2], new.shape[3]), axis=2)
            for old, new in zip(earlier, (k, v), strict=True)
        )
    present = k, v
    batch, heads, rows, size = q.shape
    own, columns, values = k.shape[1], k.shape[2], v.shape[3]
    groups = heads // own
    if groups > 1:
        q = b.reshape(q, (batch, own, groups, rows, size))
        k, v = (b.reshape(x, (batch, own, 1, *x.shape[2:])) for x in (k, v))
    scale = float(node.attrs.get("scale", 0) or size**-0.5)
    rank = len(q.shape)
    turned = b.transpose(k, (*range(rank - 2), rank - 1, rank - 2))
    shape = (*q.shape[:-1], columns)
    scores = b.add("MatMul", [b.add("Mul", [q, b.constant(scale)], q.shape), turned], shape)
    cap = float(node.attrs.get("softcap", 0.0))
    if cap:
        bounded = b.add("Tanh", [b.add("Div", [scores, b.constant(cap)], shape)], shape)
        scores = b.add("Mul", [bounded, b.constant(cap)], shape)
    scores = _masked(b, node, scores, groups)
    result = b.add("MatMul", [b.add("Softmax", [scores], shape, axis=-1), v], (*shape[:-1], values))
    result = b.reshape(result, (batch, heads, rows, values)) if groups > 1 else result
    if is_flat:
        result = b.reshape(b.transpose(result, (0, 2, 1, 3)), (batch, rows, heads * values))
    b.finish(node, result, *present)


def _heads(b: Builder, x: gs.Tensor, count: int) -> gs.Tensor:
    batch, rows, width = x.shape
    return b.transpose(b.reshape(x, (batch, rows, count, width // count)), (0, 2, 1, 3))


def _masked(b: Builder, node: gs.Node, scores: gs.Tensor, groups: int) -> gs.Tensor:
    """Scores with masked entries at the lowest finite number, so that fully masked rows get uniform weights."""
    lowest = b.constant(np.finfo(np.dtype(b.dtype)).min)
    shape = scores.shape
    if node.attrs.get("is_causal", 0):
        seen = b.constant(
            np.tril(np.ones(shape[-2:], bool), shape[-1] - shape[-2] if len(node.inputs) > 4 else 0), np.bool_
        )
        scores = b.add("Where", [seen, scores, lowest], shape)
    if len(node.inputs) < 4 or node.inputs[3].is_empty():
        return scores
    mask = node.inputs[3]
    if mask.shape[-1] not in (1, shape[-1]):
        raise ImportFailed(
            f"operator 'Attention' at '{b.name}': a mask for {mask.shape[-1]} of {shape[-1]} keys; allowed: one for all of them"
        )
    if len(mask.shape) > 2 and groups > 1:  # the heads are two axes: groups, and heads within a group
        *batch, heads, rows, columns = mask.shape
        apart = (heads // groups, groups) if heads > 1 else (1, 1)
        mask = b.reshape(mask, (*batch, *apart, rows, columns))
    if np.dtype(mask.dtype) == np.bool_:
        return b.add("Where", [mask, scores, lowest], shape)
    return b.add("Add", [scores, mask], shape)


def _dft(graph: gs.Graph, node: gs.Node) -> None:
    """DFT whose axis is an attribute and whose input has the transform's length. Source: ONNX, DFT-17 and DFT-20."""
    x, *settings = node.inputs
    lengths, axes = ([*settings, gs.Variable.empty(), gs.Variable.empty()])[:2]
    rank = len(x.shape)
    axis = (
        int(axes.values)
        if isinstance(axes, gs.Constant)
        else int(node.attrs.get("axis", -2 if graph.opset >= 20 else 1))
    )
    axis %= rank
    node.attrs["axis"] = axis
    inverse, onesided = (int(node.attrs.get(name, 0)) for name in ("inverse", "onesided"))
    node.inputs = [x]
    points = int(lengths.values) if isinstance(lengths, gs.Constant) else x.shape[axis]
    size = points // 2 + 1 if inverse and onesided else points
    if isinstance(lengths, gs.Constant) and size != x.shape[axis]:
        node.inputs = [_resized(Builder(graph, node), x, axis, size)]


def _resized(b: Builder, x: gs.Tensor, axis: int, size: int) -> gs.Tensor:
    """x with the axis cut to a size, or padded with zeros."""
    shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
    if size < x.shape[axis]:
        return b.add("Slice", [x, *(b.constant([v], np.int64) for v in (0, size, axis))], shape)
    pads = np.zeros((2, len(shape)), np.int64)
    pads[1, axis] = size - x.shape[axis]
    return b.add("Pad", [x, b.constant(pads.reshape(-1), np.int64)], shape)


def _stft(graph: gs.Graph, node: gs.Node) -> None:
    """Transform each window of a real signal (B, L[, 1]): (B, frames, frequencies, 2). Source: ONNX, STFT-17."""
    signal, steps, window, lengths = ([*node.inputs, gs.Variable.empty(), gs.Variable.empty()])[:4]
    samples, whole = signal.shape[:2]
    given = [x for x in (steps, lengths) if not x.is_empty()]
    if any(not isinstance(x, gs.Constant) for x in given) or prod(signal.shape) != samples * whole:
        raise ImportFailed(
            f"{place_of(node)}: computed lengths, or complex signals; allowed: real signals, stored lengths"
        )
    b = Builder(graph, node)
    step = int(steps.values)
    length = int(lengths.values) if isinstance(lengths, gs.Constant) else window.shape[0]
    count = (whole - length) // step + 1
    positions = np.arange(count)[:, None] * step + np.arange(length)[None]
    flat = signal if len(signal.shape) == 2 else b.reshape(signal, (samples, whole))
    frames = b.add("Gather", [flat, b.constant(positions, np.int64)], (samples, count, length), axis=1)
    if not window.is_empty():
        frames = b.add("Mul", [frames, window], frames.shape)
    column = b.reshape(frames, (samples, count, length, 1))
    onesided = int(node.attrs.get("onesided", 1))
    size = length // 2 + 1 if onesided else length
    b.finish(node, b.add("DFT", [column], (samples, count, size, 2), axis=2, inverse=0, onesided=onesided))


def _col2im(graph: gs.Graph, node: gs.Node) -> None:
    """Sum overlapping blocks by a transposed convolution in which each entry of a block has its own kernel.

    x is (B, C · entries of a block, blocks). Source: ONNX, Col2Im-18.
    """
    x, *settings = node.inputs
    b = Builder(graph, node)
    if any(not isinstance(given, gs.Constant) for given in settings):
        raise ImportFailed(f"operator 'Col2Im' at '{b.name}': computed sizes; allowed: stored sizes")
    sizes, kernel = ([int(size) for size in given.values] for given in settings)
    rank = len(sizes)
    strides, dilations = (list(node.attrs.get(name, [1] * rank)) for name in ("strides", "dilations"))
    pads = list(node.attrs.get("pads", [0] * 2 * rank))
    ends = zip(sizes, pads, pads[rank:], dilations, kernel, strict=False)
    spans = [size + begin + end - step * (k - 1) - 1 for size, begin, end, step, k in ends]
    places = [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]
    batch, width, entries = x.shape[0], x.shape[1], prod(kernel)
    groups = width // entries
    weight = np.tile(np.eye(entries).reshape(entries, 1, *kernel), (groups, *(1,) * (rank + 1)))
    added = b.add(
        "ConvTranspose",
        [b.reshape(x, (batch, width, *places)), b.constant(weight)],
        (batch, groups, *sizes),
        group=groups,
        kernel_shape=kernel,
        dilations=dilations,
        strides=strides,
        pads=pads,
        output_padding=[span % stride for span, stride in zip(spans, strides, strict=True)],
    )
    b.finish(node, added)


def _recurrent(graph: gs.Graph, node: gs.Node) -> None:
    """Rewrite a backward recurrent layer as a forward one with reversed input and output steps. Source: ONNX, LSTM-14."""
    lengths = node.inputs[4] if len(node.inputs) > 4 else gs.Variable.empty()
    if node.attrs.get("direction") != "reverse" or not lengths.is_empty() or node.attrs.get("layout", 0):
        return
    b, given = Builder(graph, node), node.outputs[0]
    node.attrs["direction"] = "forward"
    node.inputs[0] = _reversed(b, node.inputs[0], node.inputs[0].shape)
    node.outputs[0] = gs.Variable(f"{b.name}/backwards", b.dtype, given.shape)
    _reversed(b, node.outputs[0], given.shape).inputs[0].outputs[0] = given


def _reversed(b: Builder, x: gs.Tensor, shape: Sequence[int]) -> gs.Variable:
    """x with its first axis reversed."""
    ranges = (b.constant([bound], np.int64) for bound in (-1, np.iinfo(np.int64).min, 0, -1))
    return b.add("Slice", [x, *ranges], shape)


WRITERS = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    "Attention": _attention,
    "Col2Im": _col2im,
    "DFT": _dft,
    "STFT": _stft,
}

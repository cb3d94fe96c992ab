"""From an ONNX model to the IR: constants folded, shapes known, weights kept apart. BatchNorm is never folded."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs
import torch
from onnx.reference import ReferenceEvaluator

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Attribute, Graph, Node, Tensors
from tailor_ir.trace import OPSET, TRACE_BATCH

BATCH_NORM_STATISTICS = (3, 4)  # input positions of the running mean and variance
MAX_FOLD_ROUNDS = 12
CONTROL_FLOW = {"If", "Loop", "Scan"}
# took their axes as an attribute up to opset 17
REDUCTIONS = {
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceSumSquare",
}  # fmt: skip
RECURRENT = {"LSTM", "GRU"}


def import_onnx(
    model: onnx.ModelProto,
    state: Mapping[str, torch.Tensor] | None = None,
    example_shape: Sequence[int] | None = None,
) -> tuple[Graph, Tensors]:
    """The IR graph and its tensors.

    `state` holds the network's own values where the model's are not to be trusted; `example_shape` (B, C, H, W) fills in
    input dimensions that the model leaves open.
    """
    _refuse_unsupported(model)
    model = _at_least(model, OPSET)
    weights = _weight_names(model, state)
    surgeon = gs.import_onnx(model)
    _fix_input_shape(surgeon, example_shape)
    _resolve_identities(surgeon)
    surgeon.cleanup(remove_unused_graph_inputs=False).toposort()
    if state is None:
        weights |= _unshare_vectors(surgeon, weights)
    values = _lay_aside(surgeon, weights)
    surgeon = _fold(surgeon)
    _drop_idle(surgeon)
    _restore(surgeon, values)
    return _to_graph(surgeon, weights, state)


def _refuse_unsupported(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        where = f"operator '{node.op_type}' at '{node.name or node.output[0]}'"
        if node.op_type in CONTROL_FLOW:
            raise ImportFailed(f"{where}: control flow; allowed: feed-forward networks; trace it with fixed branches")
        if "Quantize" in node.op_type or node.op_type.startswith("QLinear"):
            raise ImportFailed(
                f"{where}: the network is quantised; allowed: fp32; give the network before quantisation"
            )
        if node.domain not in ("", "ai.onnx"):
            raise ImportFailed(f"{where}: not supported (domain '{node.domain}'); allowed: standard ONNX operators")


def _at_least(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model in the opset that the rules are written for; newer ones differ only where `_to_graph` normalises."""
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), opset)
    if version >= opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:  # C++ exceptions come as several Python types
        reason = str(error).splitlines()[0]
        raise ImportFailed(
            f"network: opset {version} cannot be raised to {opset} ({reason}); export it with opset {opset} or later"
        ) from error


def _fix_input_shape(graph: gs.Graph, example_shape: Sequence[int] | None) -> None:
    """An open batch becomes the trace's; other open dimensions follow the example."""
    for tensor in graph.inputs:
        shape = list(tensor.shape or ())
        for position, size in enumerate(shape):
            if isinstance(size, int) and size > 0:
                continue
            if position == 0:
                shape[0] = TRACE_BATCH
            elif example_shape is not None and len(example_shape) == len(shape):
                shape[position] = example_shape[position]
            else:
                raise ImportFailed(
                    f"network: input '{tensor.name}' leaves its shape open ({tensor.shape}); "
                    "give an example input of full resolution, or export it with a fixed shape"
                )
        if shape != list(tensor.shape or ()):
            tensor.shape = shape
            for node in graph.nodes:  # shapes that were inferred for an open input no longer hold
                for output in node.outputs:
                    output.shape = None


def _resolve_identities(graph: gs.Graph) -> None:
    for node in [n for n in graph.nodes if n.op in ("Identity", "Dropout")]:
        _bypass(graph, node)


def _bypass(graph: gs.Graph, node: gs.Node) -> None:
    """Readers of a node's result read its first input instead."""
    source, target = node.inputs[0], node.outputs[0]
    for consumer in list(target.outputs):
        consumer.inputs = [source if tensor is target else tensor for tensor in consumer.inputs]
    graph.outputs = [source if tensor is target else tensor for tensor in graph.outputs]
    node.outputs.clear()


def _drop_idle(graph: gs.Graph) -> None:
    """Take out what does nothing: padding by nothing, full ranges, reshaping to the same shape, casts to the same type."""
    for node in list(graph.nodes):
        if _is_idle(node):
            _bypass(graph, node)
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]
    graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _is_idle(node: gs.Node) -> bool:
    if not node.inputs or not node.outputs:
        return False
    x, y = node.inputs[0], node.outputs[0]
    if not _fixed_shape(x) or not _fixed_shape(y) or list(x.shape) != list(y.shape):
        return False
    match node.op:
        case "Cast":
            return x.dtype is not None and x.dtype == y.dtype
        case "Expand" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten":
            return True
        case "Concat" | "Sum" | "Max" | "Min" | "Mean":
            return len(node.inputs) == 1
        case "Split":
            return len(node.outputs) == 1
        case "Pad":
            return isinstance(node.inputs[1], gs.Constant) and not node.inputs[1].values.any()
        case "Slice":
            steps = node.inputs[4] if len(node.inputs) > 4 else None
            return steps is None or (isinstance(steps, gs.Constant) and bool((steps.values > 0).all()))
        case "Transpose":
            return list(node.attrs.get("perm", ())) == list(range(len(x.shape)))
        case _:
            return False


def _unshare_vectors(graph: gs.Graph, weights: frozenset[str]) -> frozenset[str]:
    """Give each reader of a bias or scale its own copy; names of the copies.

    Exporters merge vectors of equal value (all the zero biases of one length), which ties layers that are not tied.
    """
    copies: set[str] = set()
    for tensor in list(graph.tensors().values()):
        if tensor.name not in weights or not isinstance(tensor, gs.Constant) or len(tensor.shape) != 1:
            continue
        for number, node in enumerate(list(tensor.outputs)[1:], start=1):
            copy = gs.Constant(f"{tensor.name}/{number}", np.array(tensor.values))
            copies.add(copy.name)
            node.inputs = [copy if operand is tensor else operand for operand in node.inputs]
    return frozenset(copies)


def _weight_names(model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None) -> frozenset[str]:
    """Initializers that hold what the network learned; everything else that is constant may be folded."""
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if (tensor.name in state if state is not None else tensor.data_type in floats and np.prod(tensor.dims) > 1)
    )


def _lay_aside(graph: gs.Graph, weights: frozenset[str]) -> dict[str, np.ndarray]:
    """Take the weights' values out while the graph is folded, which never needs them; the values by name."""
    values = {}
    for tensor in list(graph.tensors().values()):
        if tensor.name in weights and isinstance(tensor, gs.Constant):
            values[tensor.name] = tensor.values
            open_tensor = gs.Variable(tensor.name, tensor.dtype, tensor.shape)
            for node in list(tensor.outputs):
                node.inputs = [open_tensor if operand is tensor else operand for operand in node.inputs]
    return values


def _restore(graph: gs.Graph, values: Mapping[str, np.ndarray]) -> None:
    for name, tensor in graph.tensors().items():
        if name in values:
            tensor.to_constant(values[name])


def _constant_nodes_to_tensors(graph: gs.Graph) -> None:
    for node in [n for n in graph.nodes if n.op == "Constant"]:
        value = next(iter(node.attrs.values()))
        array = value.values if isinstance(value, gs.Constant) else np.asarray(value)
        _become_constant(node, [np.asarray(array)])


def _fold(graph: gs.Graph) -> gs.Graph:
    """Replace everything that depends on shapes and plain constants alone by its value."""
    for _ in range(MAX_FOLD_ROUNDS):
        _constant_nodes_to_tensors(graph)
        graph.nodes[:] = [node for node in graph.nodes if node.outputs]
        graph = gs.import_onnx(_infer_shapes(gs.export_onnx(graph)))
        if not _fold_once(graph):
            return graph
        graph.nodes[:] = [node for node in graph.nodes if node.outputs]
        graph.cleanup(remove_unused_graph_inputs=False).toposort()
    return graph


def _infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise ImportFailed(f"network: shapes cannot be inferred ({str(error).splitlines()[0]})") from error


def _fixed_shape(tensor: gs.Tensor) -> bool:
    return tensor.shape is not None and all(isinstance(d, int) for d in tensor.shape)


def _fold_once(graph: gs.Graph) -> bool:
    folded = False
    for node in graph.nodes:
        if node.op == "Shape" and _fixed_shape(node.inputs[0]):
            shape = node.inputs[0].shape[node.attrs.get("start", 0) : node.attrs.get("end", None)]
            _become_constant(node, [np.asarray(shape, np.int64)])
        elif all(i.is_empty() or isinstance(i, gs.Constant) for i in node.inputs):
            _become_constant(node, _evaluate(node, graph.opset))
        else:
            continue
        folded = True
    return folded


def _become_constant(node: gs.Node, values: list[np.ndarray]) -> None:
    for output, value in zip(list(node.outputs), values, strict=True):
        output.to_constant(np.ascontiguousarray(value) if value.ndim else value)
    node.outputs.clear()


def _evaluate(node: gs.Node, opset: int) -> list[np.ndarray]:
    single = gs.Graph(
        nodes=[
            gs.Node(
                op=node.op,
                attrs=dict(node.attrs),
                inputs=[gs.Variable.empty() if i.is_empty() else gs.Constant(i.name, i.values) for i in node.inputs],
                outputs=[gs.Variable(o.name) for o in node.outputs],
            )
        ],
        opset=opset,
    )
    single.outputs = list(single.nodes[0].outputs)
    model = gs.export_onnx(single, do_type_check=False)
    return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, {})]


def _attribute(value: object) -> Attribute:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_attribute(v) for v in value)  # type: ignore[return-value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, gs.Tensor | onnx.TensorProto):
        raise TypeError("tensor attribute")
    assert isinstance(value, int | float | str), value
    return value


def _to_graph(
    surgeon: gs.Graph, weights: frozenset[str], state: Mapping[str, torch.Tensor] | None
) -> tuple[Graph, Tensors]:
    if len(surgeon.inputs) != 1:
        names = ", ".join(i.name for i in surgeon.inputs)
        raise ImportFailed(f"network: {len(surgeon.inputs)} inputs ({names}); allowed: one")
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: Tensors = {}
    nodes: list[Node] = []
    used: set[str] = set()
    for index, node in enumerate(surgeon.nodes):
        name = node.name or f"{node.op}_{index}"
        name = name if name not in used else f"{name}_{index}"
        used.add(name)
        _normalise(node)
        for tensor in (*node.inputs, *node.outputs):
            _note_tensor(tensor, name, node.op, shapes, tensors, state)
        try:
            attributes = tuple(sorted((k, _attribute(v)) for k, v in node.attrs.items()))
        except TypeError:
            raise ImportFailed(f"operator '{node.op}' at '{name}': not supported; allowed: plain attributes") from None
        nodes.append(
            Node(
                name=name,
                op=node.op,
                inputs=tuple("" if i.is_empty() else i.name for i in node.inputs),
                outputs=tuple(o.name for o in node.outputs),
                attributes=attributes,
            )
        )
    statistics = _statistics(nodes)
    trainable = tuple(n for n in tensors if n in weights and n not in statistics and tensors[n].is_floating_point())
    return (
        Graph(
            nodes=tuple(nodes),
            inputs=tuple(i.name for i in surgeon.inputs),
            outputs=tuple(o.name for o in surgeon.outputs),
            shapes=shapes,
            parameters=trainable,
            statistics=statistics,
            constants=tuple(n for n in tensors if n not in statistics and n not in set(trainable)),
        ),
        tensors,
    )


def _normalise(node: gs.Node) -> None:
    """Forms of later opsets, and forms with the same meaning, in terms of opset 17 and the IR's own operators."""
    if node.op in REDUCTIONS and len(node.inputs) > 1:
        axes = node.inputs.pop()
        if not axes.is_empty():
            node.attrs["axes"] = [int(a) for a in axes.values]
    node.attrs.pop("noop_with_empty_axes", None)
    node.attrs.pop("num_outputs", None)
    if node.op == "Gelu" and node.attrs.get("approximate") == "none":
        del node.attrs["approximate"]
    if node.op == "BatchNormalization" and node.attrs.pop("training_mode", 0):
        node.op = "BatchStandardization"
        node.inputs = list(node.inputs[:3])
        node.outputs = list(node.outputs[:1])
        node.attrs.pop("momentum", None)
    if node.op == "GroupNormalization" and node.inputs[1].shape[0] == node.inputs[0].shape[1]:
        node.op = "GroupNorm"
        node.attrs.pop("stash_type", None)
    if node.op == "RMSNormalization" and len(node.inputs[1].shape) == 1:
        node.op = "RmsNorm"
        node.attrs = {"axis": -1, "epsilon": node.attrs.get("epsilon", 1e-5)}
    if node.op == "Swish" and node.attrs.pop("alpha", 1.0) == 1.0:
        node.op = "Silu"
    if node.op in RECURRENT:
        _drop_default_states(node)
    if str(node.attrs.get("auto_pad", "NOTSET")) in ("SAME_UPPER", "SAME_LOWER"):
        _write_pads(node)


def _drop_default_states(node: gs.Node) -> None:
    """Zero states and full lengths are what recurrent layers start from anyway."""
    steps = node.inputs[0].shape[0]
    for position, default in ((4, steps), (5, 0), (6, 0)):
        given = node.inputs[position] if len(node.inputs) > position else gs.Variable.empty()
        if isinstance(given, gs.Constant) and (given.values == default).all():
            node.inputs[position] = gs.Variable.empty()


def _write_pads(node: gs.Node) -> None:
    """Padding that keeps ceil(size / stride) positions, as numbers for the traced resolution."""
    upper = node.attrs.pop("auto_pad") == "SAME_UPPER"
    spatial = node.inputs[0].shape[2:]
    kernel = node.attrs.get("kernel_shape", None if len(node.inputs) < 2 else node.inputs[1].shape[2:])
    strides = node.attrs.get("strides", [1] * len(spatial))
    dilations = node.attrs.get("dilations", [1] * len(spatial))
    pairs = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        if node.op == "ConvTranspose":
            total = max((k - 1) * dilation + 1 - stride, 0)
        else:
            total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        pairs.append((total // 2, total - total // 2) if upper else (total - total // 2, total // 2))
    node.attrs["pads"] = [begin for begin, _ in pairs] + [end for _, end in pairs]


def _note_tensor(
    tensor: gs.Tensor,
    node_name: str,
    op: str,
    shapes: dict[str, tuple[int, ...]],
    tensors: Tensors,
    state: Mapping[str, torch.Tensor] | None,
) -> None:
    if tensor.is_empty() or tensor.name in shapes:
        return
    if isinstance(tensor, gs.Constant):
        value = torch.from_numpy(np.array(tensor.values))
        if state is not None and tensor.name in state:
            value = state[tensor.name].detach().clone().reshape(value.shape)
        tensors[tensor.name] = value
        shapes[tensor.name] = tuple(value.shape)
        return
    if tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        raise ImportFailed(
            f"operator '{op}' at '{node_name}': the shape of '{tensor.name}' is not fixed (got {tensor.shape}); "
            "allowed: networks whose shapes follow from the input's; export with a fixed input shape"
        )
    shapes[tensor.name] = tuple(tensor.shape)


def _statistics(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(n.inputs[i] for n in nodes if n.op == "BatchNormalization" for i in BATCH_NORM_STATISTICS)
    )

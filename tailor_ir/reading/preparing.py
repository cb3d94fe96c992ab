"""Preparation of an ONNX model for the importer: functions inlined, sizes open, one floating-point type, no QDQ.

Files in QDQ form (QuantizeLinear beside DequantizeLinear) are read as the float32 network before quantisation. Weights
are initializers, Constant nodes, and values that a file computes from constants.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
import onnx_graphsurgeon as gs
import torch
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.exception import OnnxGraphSurgeonException

from tailor_ir.errors import ImportFailed, first_line
from tailor_ir.reading.file_forms import place_of
from tailor_ir.reading.files import OTHERS, float_remark, read_as_float32, weights_type
from tailor_ir.reading.trace import OPSET

PAIR = ("QuantizeLinear", "DequantizeLinear")
MOVING = frozenset(
    ("Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze",
     "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators that commute with quantisation: they select or move values."""
POOLING = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
NOT_NEGATIVE = frozenset(("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus"))


def quantisation_remark(model: onnx.ModelProto) -> tuple[str, ...]:
    """A remark for a quantised file; () for other files."""
    stored = {tensor.name for tensor in model.graph.initializer}
    found = [node for node in model.graph.node if node.op_type == PAIR[0] and node.input[0] not in stored]
    found = found or [node for node in model.graph.node if node.op_type == PAIR[1]]
    if not found:
        return ()
    first = found[0].name or found[0].output[0]
    return (
        f"the file is quantised: {len(found)} times {found[0].op_type}, first at '{first}', were left out; the network is read "
        "as float32, with the weights that its integers stand for; fine-tune it, and quantise its SubNets anew",
    )


def drop_quantisation(graph: gs.Graph) -> None:
    """Remove quantisation of computed values; stored integers stay, and folding turns them into the numbers they represent.

    A range that begins at zero represents a ReLU that the quantiser removed, so it stays as a Clip.
    ImportFailed: the network computes with integers in another way.
    """
    if not any(node.op in PAIR for node in graph.nodes):
        return
    graph.toposort()
    rounded = _rounded(graph)
    for node in list(graph.nodes):
        _refuse_integers(node, rounded)
        if node.op == PAIR[1] and id(node.inputs[0]) in rounded:
            _replace(graph, node, None)
        elif node.op == PAIR[1] and not isinstance(node.inputs[0], gs.Constant) and not _is_stored(node.inputs[0]):
            _dequantise(graph, node)
    for output in graph.outputs:
        if id(output) in rounded:
            raise ImportFailed(
                f"network: its output '{output.name}' is quantised; allowed: outputs behind a DequantizeLinear; leave out the "
                "last QuantizeLinear"
            )
    for node in [node for node in graph.nodes if node.op == PAIR[0]]:
        _replace(graph, node, _range_from_zero(node))
    for tensor in graph.tensors().values():
        if id(tensor) in rounded:
            tensor.dtype = np.dtype(np.float32)
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]
    graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _rounded(graph: gs.Graph) -> set[int]:
    """Identities of the computed values that are quantised."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op == PAIR[0] or (node.op in MOVING and any(id(operand) in found for operand in node.inputs)):
            found |= {id(output) for output in node.outputs}
    return found


def _is_stored(tensor: gs.Tensor) -> bool:
    """Whether a value depends on constants alone."""
    return isinstance(tensor, gs.Constant) or (
        bool(tensor.inputs)
        and all(map(_is_stored, (i for node in tensor.inputs for i in node.inputs if not i.is_empty())))
    )


def _refuse_integers(node: gs.Node, rounded: set[int]) -> None:
    if node.op not in (PAIR[1], *MOVING) and any(id(operand) in rounded for operand in node.inputs):
        raise ImportFailed(
            f"{place_of(node)}: the network is quantised, and computes with integers here; allowed: fp32, and "
            "QuantizeLinear beside DequantizeLinear; give the network before quantisation"
        )


def _replace(graph: gs.Graph, node: gs.Node, upper: float | None) -> None:
    """Replace a node's result by its first operand, clipped to 0 … upper if `upper` is given."""
    source, target = node.inputs[0], node.outputs[0]
    node.inputs.clear()
    node.outputs.clear()
    if upper is None:
        graph.nodes.append(gs.Node("Identity", f"{target.name}/kept", inputs=[source], outputs=[target]))
        return
    limits = [
        gs.Constant(f"{target.name}/limit{i}", np.asarray(limit, np.float32)) for i, limit in enumerate((0, upper))
    ]
    graph.nodes.append(gs.Node("Clip", f"{target.name}/limited", inputs=[source, *limits], outputs=[target]))


def _range_from_zero(node: gs.Node) -> float | None:
    """Upper end of the range of a QuantizeLinear that cuts off negative numbers; None if it cuts off none."""
    source, scale, *zero = node.inputs
    if isinstance(source, gs.Constant) or not isinstance(scale, gs.Constant) or scale.values.size != 1:
        return None
    point = zero[0].values if zero and isinstance(zero[0], gs.Constant) else np.zeros((), np.uint8)
    if point.size != 1 or point.dtype.kind not in "iu" or int(point.reshape(())) != np.iinfo(point.dtype).min:
        return None
    return None if _is_positive(source) else float(scale.values.reshape(())) * (2 ** (8 * point.dtype.itemsize) - 1)


def _is_positive(tensor: gs.Tensor) -> bool:
    producer = tensor.inputs[0] if tensor.inputs else None
    while producer is not None and producer.op in MOVING | POOLING:
        before = producer.inputs[0].inputs
        producer = before[0] if before else None
    if producer is None:
        return False
    if producer.op == "Clip" and len(producer.inputs) > 1 and isinstance(producer.inputs[1], gs.Constant):
        return bool((producer.inputs[1].values >= 0).all())
    return producer.op in NOT_NEGATIVE


def _dequantise(graph: gs.Graph, node: gs.Node) -> None:
    """Replace a DequantizeLinear of input or computed integers by (x - zero point) · scale."""
    nodes = list(_scaled(node))
    node.inputs.clear()
    node.outputs.clear()
    graph.nodes.extend(nodes)


def _scaled(node: gs.Node) -> Iterator[gs.Node]:
    x, scale, *zero = node.inputs
    name, result = node.outputs[0].name, node.outputs[0]
    axis, rank = int(node.attrs.get("axis", 1)), len(x.shape or ())
    if not all(isinstance(each, gs.Constant) for each in (scale, *zero)):
        raise ImportFailed(f"{place_of(node)}: its scale is computed; allowed: constants")

    def along(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, *(1,) * (rank - 1 - axis % rank)) if values.size > 1 else values.reshape(())

    plain = gs.Variable(f"{name}/plain", np.float32, x.shape)
    yield gs.Node("Cast", f"{name}/cast", {"to": onnx.TensorProto.FLOAT}, [x], [plain])
    if zero:
        shifted = gs.Variable(f"{name}/shifted", np.float32, x.shape)
        point = gs.Constant(f"{name}/zero", along(zero[0].values.astype(np.float32)))
        yield gs.Node("Sub", f"{name}/shift", inputs=[plain, point], outputs=[shifted])
        plain = shifted
    yield gs.Node(
        "Mul", f"{name}/scale", inputs=[plain, gs.Constant(f"{name}/scaling", along(scale.values))], outputs=[result]
    )


QUANTISED = {"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger"}  # and all QLinear… operators
MICROSOFT = "com.microsoft"
STORED_APART = 4  # first version of the format in which stored tensors need not be inputs
SAMPLED_BY_CENTRES = 11  # first opset whose Resize can choose coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model of standard operators in float32.

    given_types: declared types of inputs that were not float32. given_weights: type of most weights, see `weights_type`.
    """

    model: onnx.ModelProto
    given_types: dict[str, str]
    given_weights: str
    remarks: tuple[str, ...]


def prepare(given: onnx.ModelProto) -> PreparedModel:
    """The network as a `PreparedModel`; the given model is not changed. ImportFailed: the model cannot be read."""
    model = onnx.ModelProto()
    model.CopyFrom(given)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ImportFailed(
                f"network: tensor '{tensor.name}' is stored in another file, which a model in memory does not hold; give "
                "the path of the .onnx file"
            )
    if model.functions:
        model = _inlined(model)
    if model.ir_version < STORED_APART:  # these versions list stored tensors as inputs, too
        stored = {tensor.name for tensor in model.graph.initializer}
        inputs = [each for each in model.graph.input if each.name not in stored]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = STORED_APART
    for node in model.graph.node:
        if node.domain == MICROSOFT and node.op_type in PAIR:  # equal to ONNX's operators, with more integer types
            node.domain = ""
    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in info.type.tensor_type.shape.dim:
            if size.HasField("dim_value") and size.dim_value < 0:
                size.ClearField("dim_value")
    refuse_unsupported(model)
    kinds = sorted({OTHERS[t.data_type] for t in model.graph.initializer if t.data_type in OTHERS})
    weights, types = weights_type(model), read_as_float32(model)
    named = ", ".join(dict.fromkeys((*types.values(), *kinds)))
    low = (float_remark(named),) if types or kinds else ()
    quantised = quantisation_remark(model)
    return PreparedModel(
        model=_dequantised(model) if quantised else model,
        given_types=types,
        given_weights=weights,
        remarks=(*low, *quantised),
    )


def refuse_unsupported(model: onnx.ModelProto) -> None:
    """ImportFailed: an operator computes with integers, or is not part of ONNX."""
    for node in model.graph.node:
        where = f"operator '{node.op_type}' at '{node.name or node.output[0]}'"
        if node.op_type in QUANTISED or node.op_type.startswith("QLinear"):
            raise ImportFailed(
                f"{where}: the network is quantised; allowed: fp32, and QuantizeLinear beside DequantizeLinear; give the "
                "network before quantisation"
            )
        if node.domain not in ("", "ai.onnx"):
            raise ImportFailed(
                f"{where}: not supported (domain '{node.domain}'); write it in standard ONNX operators, or report it"
            )


def _dequantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network before quantisation. ImportFailed: it computes with integers."""
    with quiet_surgeon():
        graph = imported(at_least(model, OPSET))
        drop_quantisation(graph)
        return gs.export_onnx(graph)


def imported(model: onnx.ModelProto) -> gs.Graph:
    """A model as a graph of onnx-graphsurgeon. ImportFailed: the model cannot be read."""
    try:
        return gs.import_onnx(model)
    except Exception as error:  # graphsurgeon raises several types
        raise ImportFailed(f"network: its graph cannot be read ({first_line(error)}); export it again") from error


def at_least(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model raised to an opset; newer models are unchanged, because `normalise` rewrites their differences."""
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), opset)
    if version >= opset:
        return model
    try:
        return _mend_raised(onnx.version_converter.convert_version(model, opset), version)
    except Exception as error:  # C++ exceptions come as several Python types
        reason = str(error).splitlines()[0]
        raise ImportFailed(
            f"network: opset {version} cannot be raised to {opset} ({reason}); export it with opset {opset} or later"
        ) from error


def _mend_raised(model: onnx.ModelProto, before: int) -> onnx.ModelProto:
    """Rewrite forms of earlier opsets that the version converter ignores, in place. before: original opset of the model."""
    for node in model.graph.node:
        if node.op_type == "ConstantFill":
            _write_filling(node)
        if node.op_type == "Resize" and before < SAMPLED_BY_CENTRES:
            modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            kept = [each for each in node.attribute if each.name not in modes]
            del node.attribute[:]
            node.attribute.extend((*kept, *(onnx.helper.make_attribute(*mode) for mode in modes.items())))
    return model


def _write_filling(node: onnx.NodeProto) -> None:
    """Rewrite ConstantFill with computed sizes (experimental, of torch's first exporters) as ConstantOfShape."""
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if given.get("input_as_shape") and not given.get("extra_shape") and given.get("dtype", 1) == onnx.TensorProto.FLOAT:
        value = onnx.helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [given.get("value", 0.0)])
        node.op_type = "ConstantOfShape"
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("value", value))


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        inlined = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # C++ exceptions come as several Python types
        raise ImportFailed(
            f"network: its functions cannot be inlined ({first_line(error)}); export it without functions"
        ) from error
    assert isinstance(inlined, onnx.ModelProto)
    return inlined


@contextmanager
def quiet_surgeon() -> Iterator[None]:
    """While inside, onnx-graphsurgeon prints nothing, and its errors become an ImportFailed of one line."""
    with G_LOGGER.suppress(G_LOGGER.CRITICAL + 1):
        try:
            yield
        except OnnxGraphSurgeonException as error:
            raise ImportFailed(f"network: not readable ONNX ({str(error).splitlines()[0]}); export it again") from error


SETTINGS = {  # input positions of floats that are not weights
    "DequantizeLinear": (1,),
    "QuantizeLinear": (1,),
    "Resize": (1, 2),
    "Upsample": (1,),
}

WEIGHTS = {
    "BatchNormalization": (1, 2, 3, 4), "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (0, 1, 2), "GRU": (1, 2, 3),
    "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2), "LSTM": (1, 2, 3, 7), "LayerNormalization": (1, 2),
    "MatMul": (0, 1), "PRelu": (1,), "RMSNormalization": (1,), "RNN": (1, 2, 3),
}  # fmt: skip
"""Input positions of an operator's weights."""
AFFINE = frozenset(("Add", "Div", "Mul", "Sub"))
LAYERS = frozenset((*WEIGHTS, "LpNormalization", "MeanVarianceNormalization")) - {"PRelu"}
LARGEST = 1e4
"""Vectors with larger numbers are considered masks."""


def weights_in_constants(graph: gs.Graph) -> frozenset[str]:
    """Names of constants that act as weights: of layers and look-ups, and scales and shifts after layers."""
    graph.toposort()
    found: set[str] = set()
    scaled: set[int] = set()  # identities of nodes that scale or shift after layers, or that normalise
    for node in graph.nodes:
        if node.op in ("Div", "Mul") and not any(isinstance(operand, gs.Constant) for operand in node.inputs):
            scaled.add(id(node))  # normalises by a computed deviation
        for position, operand in enumerate(node.inputs):
            if (
                not isinstance(operand, gs.Constant)
                or operand.shape is None
                or operand.dtype != np.float32
                or np.prod(operand.shape) <= 1
            ):
                continue
            if position in WEIGHTS.get(node.op, ()) or _is_table(node, position):
                found.add(operand.name)
            elif node.op in AFFINE and _is_vector(node, operand) and _follows_layer(node, 1 - position, scaled):
                found.add(operand.name)
                scaled.add(id(node))
    return frozenset(found)


def _is_table(node: gs.Node, position: int) -> bool:
    if node.op != "Gather" or position or node.attrs.get("axis", 0) or isinstance(node.inputs[1], gs.Constant):
        return False
    return len(node.inputs[0].shape) == 2


def _is_vector(node: gs.Node, operand: gs.Constant) -> bool:
    """Whether a constant has one number per channel, along the second or the last axis of the result."""
    result = node.outputs[0]
    wide = [axis - len(operand.shape) for axis, size in enumerate(operand.shape) if size > 1]
    if len(wide) != 1 or result.shape is None or len(result.shape) < len(operand.shape):
        return False
    return wide[0] in (-1, 1 - len(result.shape)) and bool((np.abs(operand.values) < LARGEST).all())


def _follows_layer(node: gs.Node, position: int, scaled: set[int]) -> bool:
    producer = node.inputs[position].inputs
    return bool(producer) and (producer[0].op in LAYERS or id(producer[0]) in scaled)


def unshare_vectors(graph: gs.Graph, weights: frozenset[str]) -> frozenset[str]:
    """Give each reader of a bias or scale its own copy. Returns the names of the copies.

    Exporters merge vectors of equal value (such as zero biases of the same length), which would tie independent layers.
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


def weight_names(model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None) -> frozenset[str]:
    """Initializers with learned values; all other constants may be folded."""
    settings = {
        node.input[position]
        for node in model.graph.node
        for position in SETTINGS.get(node.op_type, ())
        if position < len(node.input)
    }
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if (
            tensor.name in state
            if state is not None
            else tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > 1
        )
        and tensor.name not in settings
    )

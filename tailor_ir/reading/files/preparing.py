"""Prepare an ONNX model for the importer: functions inlined, unknown sizes open, one floating-point type."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
import onnx.inliner
import onnx.version_converter
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.exception import OnnxGraphSurgeonException

from tailor_ir.errors import ImportFailed
from tailor_ir.reading.files.element_types import OTHERS, float_remark, read_as_float32
from tailor_ir.reading.files.quantised import PAIR, drop_quantisation, quantisation_remark
from tailor_ir.reading.trace import OPSET

QUANTISED = {"ConvInteger", "DynamicQuantizeLinear", "MatMulInteger"}  # and all QLinear… operators
MICROSOFT = "com.microsoft"
STORED_APART = 4  # first version of the format in which stored tensors need not be inputs
SAMPLED_BY_CENTRES = 11  # first opset whose Resize can choose coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model of standard operators in float32. given_types: declared types of inputs that were not float32."""

    model: onnx.ModelProto
    given_types: dict[str, str]
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
    types = read_as_float32(model)
    named = ", ".join(dict.fromkeys((*types.values(), *kinds)))
    low = (float_remark(named),) if types or kinds else ()
    quantised = quantisation_remark(model)
    return PreparedModel(
        model=_dequantised(model) if quantised else model, given_types=types, remarks=(*low, *quantised)
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportFailed(f"network: its graph cannot be read ({reason}); export it again") from error


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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportFailed(
            f"network: its functions cannot be inlined ({reason}); export it without functions"
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

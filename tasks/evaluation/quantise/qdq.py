"""QDQ files by onnxruntime: int8 weights per channel and symmetric, uint8 activations whose ranges come from images.

A QDQ file has each tensor in int8 between QuantizeLinear and DequantizeLinear; runtimes fuse these pairs into the
operators around them.

Guards keep layers in fp32. Between DequantizeLinear and QuantizeLinear, with or without a Relu or Clip, onnxruntime
computes a convolution in int8 even if its weights are fp32: it quantises them itself. A LeakyRelu of slope 1 behind the
convolution prevents this. It changes no number, and runtimes fuse it into the convolution.

Models that are only timed have ranges from one random input, since times do not depend on numbers. Their weights are
the network's: when it loads a file, a runtime arranges int8 weights for its kernels, but not numbers that are computed
in the model.
"""

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, create_calibrator, quantize_static
from onnxruntime.quantization.calibrate import save_tensors_data

from profiling_agents.messages import Precision
from tailor_ir import ALIGNMENT_NODES, Config, Statistics, SuperNet
from tasks.base.errors import shortened
from tasks.evaluation.conversion import ConversionError, onnx_of


def kept_in_fp32(model: bytes, kept: Collection[str]) -> bytes:
    """The QDQ model with guards behind the convolutions among the layers `kept`."""
    loaded = onnx.load_from_string(model)
    outputs = {value.name for value in loaded.graph.output}
    nodes: list[onnx.NodeProto] = []
    for node in loaded.graph.node:
        nodes.append(node)
        if node.name in kept and node.op_type == "Conv" and node.output[0] not in outputs:
            result = node.output[0]
            node.output[0] = f"{result}/unguarded"
            nodes.append(
                helper.make_node("LeakyRelu", [node.output[0]], [result], name=f"{node.name}/guard", alpha=1.0)
            )
    del loaded.graph.node[:]
    loaded.graph.node.extend(nodes)
    content: bytes = loaded.SerializeToString()
    return content


LAYERS = {"Conv": 1, "Gemm": 1, "MatMul": 1}
"""Operators with weights, and the position of the weight among their inputs."""
FOLDED = ("Relu", "Clip")
"""Operators that a layer in int8 includes by the range of its outputs."""
BETWEEN = ("Add", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Flatten")
"""Operators in int8 if their result is used in int8: two conversions would take longer than the operator itself."""
FLOAT_RESULTS = ("Gemm",)
"""Layers with fp32 results: class scores with 256 steps would have ties."""


def layers(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Names of the nodes with weights, in their order."""
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(
        node.name for node in graph.node if node.op_type in LAYERS and node.input[LAYERS[node.op_type]] in weights
    )


def quantised_nodes(graph: onnx.GraphProto, kept: Collection[str], going_on: Collection[str] = ()) -> list[str]:
    """Names of the nodes in int8, when the layers `kept` stay in fp32. Nodes are in topological order.

    going_on: results of the graph that are used in int8, such as those of an operator in a network. Images are aligned in fp32:
    images that need alignment are outside the usual range.
    """
    weights = {tensor.name for tensor in graph.initializer}
    chosen = set(layers(graph)) - set(kept)
    read = set(going_on)  # values that a node in int8 reads
    for node in reversed([node for node in graph.node if not node.name.startswith(ALIGNMENT_NODES)]):
        goes_on = any(name in read for name in node.output)
        if node.op_type in FOLDED or (node.op_type in BETWEEN and goes_on and not weights.intersection(node.input)):
            chosen.add(node.name)
        if node.name in chosen and (goes_on or node.op_type not in FOLDED):
            read.update(node.input)
    return [node.name for node in graph.node if node.name in chosen]


OPERATORS = [*LAYERS, *FOLDED, *BETWEEN]
PREPARED = {"onnx.quant.pre_process": "onnxruntime.quant"}
"""Marker for onnxruntime that a model needs no preparation: constants and BatchNorm are already folded."""


Feeds = Mapping[str, NDArray[np.generic]]
"""The inputs of one run by name."""


class _Reader(CalibrationDataReader):
    """Batches for the calibration, one after the other."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        feeds = next(self._feeds, None)
        return None if feeds is None else dict(feeds)


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Quantises one SubNet's models of any batch. `ranges`: a file with the least and the largest number of each tensor."""

    ranges: Path
    reduce_range: bool

    @classmethod
    def calibrated(cls, model: bytes, feeds: Iterable[Feeds], folder: Path, *, reduce_range: bool) -> "Quantiser":
        """Calibrate by running the fp32 model on inputs of its shapes. The files stay in `folder`."""
        path, ranges = folder / "calibrated.onnx", folder / "ranges.json"
        path.write_bytes(model)
        calibrator = create_calibrator(
            path, OPERATORS, str(folder / "augmented.onnx"), providers=["CPUExecutionProvider"]
        )
        calibrator.collect_data(_Reader(feeds))
        save_tensors_data(calibrator.compute_data(), ranges)
        return cls(ranges, reduce_range)

    def quantise(self, model: bytes, kept: Collection[str] = (), *, goes_on: bool = False) -> bytes:
        """The QDQ file of a calibrated fp32 model; the layers `kept` stay in fp32.
        goes_on: its results are used in int8.
        """
        loaded = onnx.load_from_string(model)
        nodes = quantised_nodes(loaded.graph, kept, [one.name for one in loaded.graph.output] if goes_on else ())
        if not nodes:
            return model
        onnx.helper.set_model_props(loaded, PREPARED)
        out = self.ranges.with_name("quantised.onnx")
        quantize_static(
            loaded,
            out,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            nodes_to_quantize=nodes,
            per_channel=True,
            reduce_range=self.reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibration_cache_path=self.ranges,
            extra_options={
                "OpTypesToExcludeOutputQuantization": list(FLOAT_RESULTS),
                "ForceQuantizeNoInputCheck": goes_on,
            },
        )
        return kept_in_fp32(out.read_bytes(), kept)


SEED = 0


def timed_onnx(
    net: SuperNet, config: Config, precision: Precision, statistics: Statistics | None = None, *, weights: bool
) -> bytes:
    """The ONNX model of one SubNet, to be timed in a precision. weights: whether to include weights in fp32; int8 always does.
    ConversionError if a model cannot be quantised.
    """
    if precision != "int8":
        return onnx_of(net, config, statistics, weights=weights)
    return int8_to_time(onnx_of(net, config, statistics))


def int8_operator(model: bytes) -> bytes:
    """An operator's fp32 model in int8 as it runs between others: tensors that it reads or writes in int8 stay in int8."""
    loaded = onnx.load_from_string(int8_to_time(model, goes_on=True))
    _drop_ends(loaded.graph)
    content: bytes = loaded.SerializeToString()
    return content


def int8_to_time(model: bytes, *, goes_on: bool = False) -> bytes:
    """An fp32 model with its weights, of fixed shapes, in int8. goes_on: its results are used in int8.

    ConversionError if it cannot be quantised.
    """
    feeds = _random_feeds(onnx.load_from_string(model).graph)
    with tempfile.TemporaryDirectory(prefix="autotailor-int8-") as folder:
        try:
            quantiser = Quantiser.calibrated(model, [feeds], Path(folder), reduce_range=False)
            return quantiser.quantise(model, goes_on=goes_on)
        except Exception as error:  # many kinds of errors, none of them ours
            reason = shortened(error) or type(error).__name__
            raise ConversionError(f"onnxruntime.quantization: {reason}") from error


def _drop_ends(graph: onnx.GraphProto) -> None:
    """Remove conversions at both ends: inputs that are quantised at once, and outputs in int8 until the end, become uint8."""
    readers = Counter(name for node in graph.node for name in node.input)
    inputs, outputs = ({value.name: value for value in values} for values in (graph.input, graph.output))
    renamed: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in inputs and readers[node.input[0]] == 1:
            renamed[node.output[0]] = node.input[0]
            inputs[node.input[0]].type.tensor_type.elem_type = onnx.TensorProto.UINT8
        elif node.op_type == "DequantizeLinear" and node.output[0] in outputs and readers[node.output[0]] == 0:
            renamed[node.input[0]] = node.output[0]
            outputs[node.output[0]].type.tensor_type.elem_type = onnx.TensorProto.UINT8
        else:
            kept.append(node)
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    del graph.node[:]
    graph.node.extend(kept)
    known = [value for value in graph.value_info if value.name not in renamed]
    del graph.value_info[:]
    graph.value_info.extend(known)


def _random_feeds(graph: onnx.GraphProto) -> dict[str, NDArray[np.generic]]:
    """Standard normal numbers for each input; zeros for inputs of integers."""
    rng = np.random.default_rng(SEED)
    weights = {tensor.name for tensor in graph.initializer}
    feeds: dict[str, NDArray[np.generic]] = {}
    for value in graph.input:
        if value.name not in weights:
            kind = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            shape = [dimension.dim_value for dimension in kind.shape.dim]
            is_real = np.issubdtype(dtype, np.floating)
            feeds[value.name] = rng.standard_normal(shape).astype(dtype) if is_real else np.zeros(shape, dtype)
    return feeds

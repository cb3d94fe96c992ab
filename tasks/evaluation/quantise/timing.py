"""Models in int8 that are only timed: their ranges come from one random input, since times do not depend on numbers.

Their weights are those of the network: when it loads a file, a runtime arranges int8 weights for its kernels, but not numbers
that are computed in the model.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from profiling_agents.messages import Precision
from tailor_ir import Config, Statistics, SuperNet
from tasks.base.errors import shortened
from tasks.evaluation.conversion import ConversionError, onnx_of
from tasks.evaluation.quantise.qdq import Quantiser

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


def int8_to_time(model: bytes) -> bytes:
    """An fp32 model with its weights, of fixed shapes, in int8. ConversionError if it cannot be quantised."""
    return _quantised(model, goes_on=False)


def int8_operator(model: bytes) -> bytes:
    """An operator's fp32 model in int8 as it runs between others: tensors that it reads or writes in int8 stay in int8."""
    loaded = onnx.load_from_string(_quantised(model, goes_on=True))
    _drop_ends(loaded.graph)
    content: bytes = loaded.SerializeToString()
    return content


def _quantised(model: bytes, *, goes_on: bool) -> bytes:
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

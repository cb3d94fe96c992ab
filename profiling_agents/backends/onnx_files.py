"""Uploaded ONNX files: parsed from bytes; external data is refused, so no path of the device is opened for them.

The names in the files are replaced by ours before any library other than onnx reads them.
"""

import numpy as np
import onnx
from onnx import numpy_helper

from profiling_agents.backends.base import ModelError
from profiling_agents.backends.onnx_names import every_message, with_own_names
from profiling_agents.backends.own_names import OwnNames
from profiling_agents.messages import TENSOR_TYPES, JobMessage


def read_onnx(content: bytes, names: OwnNames) -> onnx.ModelProto:
    """The model with our names; `names` keeps the foreign names. ModelError: no ONNX model, or external tensors."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise ModelError(f"not an ONNX model: {error}") from error
    if any(isinstance(one, onnx.TensorProto) and _is_elsewhere(one) for one in every_message(model)):
        raise ModelError("the model keeps tensors in external data; save it as one file")
    return with_own_names(model, names)


def _is_elsewhere(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data) > 0


def job_of(job: JobMessage, model: onnx.ModelProto, names: OwnNames) -> JobMessage:
    """The job with our names for the inputs and outputs of a model from `read_onnx`. ModelError for unknown names."""
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    inputs = [names.restored(value.name) for value in model.graph.input if value.name not in weights]
    return names.job(job, "value", inputs, [names.restored(value.name) for value in model.graph.output])


def input_types(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """Element types of the inputs by name, in order; ModelError for a type that the protocol cannot send."""
    weights = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        if dtype.name not in TENSOR_TYPES:
            raise ModelError(f"input '{value.name}': type {dtype.name}; allowed: {', '.join(TENSOR_TYPES)}")
        found[value.name] = dtype
    return found


def with_filled_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its `ConstantOfShape` tensors stored as weights, for runtimes that fold no constants."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in known:
            kept.append(node)
            continue
        shape = numpy_helper.to_array(known[node.input[0]])
        value = next((numpy_helper.to_array(one.t) for one in node.attribute), np.zeros(1, np.float32))
        filled = np.full(shape, value.item(), value.dtype)
        model.graph.initializer.append(numpy_helper.from_array(filled, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model

"""Uploaded ONNX files: parsed from bytes, with our own names in place of foreign names.

External data is refused, so no path of the device is opened for them. Names are replaced before any library other than
onnx reads them: every text field of the format has a rule here, or is cleared.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import numpy_helper

from profiling_agents.backends.sanitized_names import ModelError, NameKind, SanitizedNames, word
from profiling_agents.messages import TENSOR_TYPES, JobMessage

RENAMED: dict[str, NameKind] = {
    "onnx.NodeProto.input": "value",
    "onnx.NodeProto.output": "value",
    "onnx.NodeProto.name": "node",
    "onnx.ValueInfoProto.name": "value",
    "onnx.TensorProto.name": "value",
    "onnx.FunctionProto.input": "value",
    "onnx.FunctionProto.output": "value",
    "onnx.TensorShapeProto.Dimension.dim_param": "dimension",
}
WORDS = (
    "onnx.NodeProto.op_type",
    "onnx.NodeProto.domain",
    "onnx.NodeProto.overload",
    "onnx.AttributeProto.name",
    "onnx.AttributeProto.ref_attr_name",
    "onnx.OperatorSetIdProto.domain",
    "onnx.FunctionProto.attribute",
    "onnx.FunctionProto.domain",
    "onnx.FunctionProto.name",
    "onnx.FunctionProto.overload",
)
"""Libraries look operators and attributes up by these words."""
DROPPED = (
    "onnx.ModelProto.metadata_props",
    "onnx.ModelProto.training_info",
    "onnx.ModelProto.configuration",
    "onnx.GraphProto.metadata_props",
    "onnx.GraphProto.quantization_annotation",
    "onnx.NodeProto.metadata_props",
    "onnx.NodeProto.device_configurations",
    "onnx.FunctionProto.metadata_props",
    "onnx.TensorProto.metadata_props",
    "onnx.ValueInfoProto.metadata_props",
)
"""Messages that no runtime needs to compute."""
GRAPH_NAME = "graph"  # runtimes refuse a graph without a name


def with_sanitized_names(model: onnx.ModelProto, names: SanitizedNames) -> onnx.ModelProto:
    """The model itself, changed in place; `names` keeps the foreign names.

    ModelError for an operator type, an attribute or a domain that is not a plain word.

    Texts without a rule (documentation, producers, fields of later versions of ONNX) are cleared.
    """
    model.DiscardUnknownFields()
    functions = {(one.domain, one.name, one.overload) for one in model.functions}  # nodes call them by our names
    for message in every_message(model):
        if isinstance(message, onnx.NodeProto | onnx.FunctionProto):
            field = "op_type" if isinstance(message, onnx.NodeProto) else "name"
            name = getattr(message, field)
            if (message.domain, name, message.overload) in functions:
                setattr(message, field, names.own("function", name))
        for field in message.DESCRIPTOR.fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                _rewrite(message, field, names)
            elif field.full_name in DROPPED:
                message.ClearField(field.name)
        if isinstance(message, onnx.GraphProto):
            message.name = GRAPH_NAME
    return model


def every_message(model: onnx.ModelProto) -> Iterator[Message]:
    """The model and all messages inside it: graphs of branches, functions, and messages of later versions of ONNX.

    A message comes before the messages inside it, so that a reader may clear its fields.
    """
    pending: list[Message] = [model]
    while pending:
        message = pending.pop()
        yield message
        for field in message.DESCRIPTOR.fields:
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                pending += _present(message, field)


def _present(message: Message, field: FieldDescriptor) -> Iterable[Message]:
    """The messages in a field."""
    value = getattr(message, field.name)
    if not isinstance(value, Message):
        found: Iterable[Message] = value
        return found
    return [value] if message.HasField(field.name) else []


def _rewrite(message: Message, field: FieldDescriptor, names: SanitizedNames) -> None:
    """Replace, check or clear one text field."""
    rule: Callable[[str], str]
    if field.full_name in RENAMED:
        rule = partial(names.own, RENAMED[field.full_name])
    elif field.full_name in WORDS:
        rule = partial(word, where=field.full_name.removeprefix("onnx."))
    else:
        message.ClearField(field.name)
        return
    value = getattr(message, field.name)
    if not isinstance(value, str):
        value[:] = [rule(text) for text in value]
    elif message.HasField(field.name):
        setattr(message, field.name, rule(value))


def read_onnx(content: bytes, names: SanitizedNames) -> onnx.ModelProto:
    """The model with our names; `names` keeps the foreign names. ModelError: no ONNX model, or external tensors."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise ModelError(f"not an ONNX model: {error}") from error
    tensors = (one for one in every_message(model) if isinstance(one, onnx.TensorProto))
    if any(one.data_location == onnx.TensorProto.EXTERNAL or len(one.external_data) > 0 for one in tensors):
        raise ModelError("the model keeps tensors in external data; save it as one file")
    return with_sanitized_names(model, names)


def job_of(job: JobMessage, model: onnx.ModelProto, names: SanitizedNames) -> JobMessage:
    """The job with our names for the inputs and outputs of a model from `read_onnx`. ModelError for unknown names."""
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    inputs = [names.restored(value.name) for value in model.graph.input if value.name not in weights]
    return names.job(job, "value", inputs, [names.restored(value.name) for value in model.graph.output])


@contextmanager
def opened(file: Path, job: JobMessage) -> Iterator[tuple[onnx.ModelProto, JobMessage, SanitizedNames]]:
    """The model of a file and its job, both with our names. ModelErrors of the block carry the foreign names."""
    names = SanitizedNames()
    with names.restored_errors():
        model = read_onnx(file.read_bytes(), names)
        yield model, job_of(job, model, names), names


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

"""Uploaded ONNX files: parsed from bytes; external data is refused, so no path of the device is opened for them."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from profiling_agents.backends.base import ModelError


def read_onnx(content: bytes) -> onnx.ModelProto:
    """The model; ModelError when it is none, or keeps tensors elsewhere."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise ModelError(f"not an ONNX model: {error}") from error
    graphs = [model.graph, *(graph for one in model.training_info for graph in (one.initialization, one.algorithm))]
    tensors = [tensor for function in model.functions for node in function.node for tensor in _tensors(node)]
    tensors += list(_tensors_of_graphs(graphs))
    if any(t.data_location == onnx.TensorProto.EXTERNAL or t.external_data for t in tensors):
        raise ModelError("the model keeps tensors in external data; save it as one file")
    return model


def with_filled_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """Tensors of equal numbers, which a model without its weights computes, as weights: for runtimes that fold nothing."""
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


def _tensors_of_graphs(graphs: Sequence[onnx.GraphProto]) -> Iterator[onnx.TensorProto]:
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            yield from _tensors(node)


def _tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        yield from _tensors_of_graphs((attribute.g, *attribute.graphs))

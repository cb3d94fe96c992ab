"""Find the weights of a model: initializers, Constant nodes, and values that a file computes from constants."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import torch

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

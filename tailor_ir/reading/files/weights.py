"""Weights that a file stores as Constant nodes, or computes from constants: they are trained like any others."""

import numpy as np
import onnx_graphsurgeon as gs

WEIGHTS = {
    "BatchNormalization": (1, 2, 3, 4), "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (0, 1, 2), "GRU": (1, 2, 3),
    "GroupNormalization": (1, 2), "InstanceNormalization": (1, 2), "LSTM": (1, 2, 3, 7), "LayerNormalization": (1, 2),
    "MatMul": (0, 1), "PRelu": (1,), "RMSNormalization": (1,), "RNN": (1, 2, 3),
}  # fmt: skip
"""Input positions of an operator's weights."""
AFFINE = frozenset(("Add", "Div", "Mul", "Sub"))
LAYERS = frozenset((*WEIGHTS, "LpNormalization", "MeanVarianceNormalization")) - {"PRelu"}
LARGEST = 1e4
"""Vectors with larger numbers are masks."""


def weights_in_constants(graph: gs.Graph) -> frozenset[str]:
    """Names of the constants that take the place of weights: of layers, of look-ups, and scales and shifts behind layers."""
    graph.toposort()
    found: set[str] = set()
    scaled: set[int] = set()  # identities of scales and shifts behind layers, and of what normalises
    for node in graph.nodes:
        if node.op in ("Div", "Mul") and not any(isinstance(operand, gs.Constant) for operand in node.inputs):
            scaled.add(id(node))  # by a deviation that is computed
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
    """Whether a constant has one number for each channel: along the second or the last axis of the result."""
    result = node.outputs[0]
    wide = [axis - len(operand.shape) for axis, size in enumerate(operand.shape) if size > 1]
    if len(wide) != 1 or result.shape is None or len(result.shape) < len(operand.shape):
        return False
    return wide[0] in (-1, 1 - len(result.shape)) and bool((np.abs(operand.values) < LARGEST).all())


def _follows_layer(node: gs.Node, position: int, scaled: set[int]) -> bool:
    producer = node.inputs[position].inputs
    return bool(producer) and (producer[0].op in LAYERS or id(producer[0]) in scaled)

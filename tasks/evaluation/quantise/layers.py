"""The nodes of an ONNX model that are computed in int8."""

from collections.abc import Collection

import onnx

from tailor_ir import ALIGNMENT_NODES

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

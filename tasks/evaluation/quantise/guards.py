"""Guards that keep layers of QDQ files in fp32 in onnxruntime.

Between DequantizeLinear and QuantizeLinear, with or without a Relu or Clip, onnxruntime computes a convolution in int8 even if
its weights are fp32: it quantises them itself. A LeakyRelu of slope 1 behind the convolution prevents this. It changes no
number, and runtimes fuse it into the convolution.
"""

from collections.abc import Collection

import onnx
from onnx import helper


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

"""Static operators through onnx2torch: one node at a time, its constants as initializers."""

import onnx
from onnx import helper, numpy_helper
from onnx2torch.node_converters.registry import get_converter
from onnx2torch.onnx_graph import OnnxGraph

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops.registry import Lowered
from tailor_ir.trace import OPSET


def onnx_node(node: Node) -> onnx.NodeProto:
    """The node as ONNX."""
    proto = helper.make_node(node.op, list(node.inputs), list(node.outputs), name=node.name)
    proto.attribute.extend(helper.make_attribute(k, list(v) if isinstance(v, tuple) else v) for k, v in node.attributes)
    return proto


def convert_static(node: Node, graph: Graph, tensors: Tensors) -> Lowered:
    """The torch module of a node without parameters, and the values that it is called with."""
    proto = helper.make_graph(
        [onnx_node(node)],
        "static",
        [_value(name, graph) for name in node.inputs if name and name not in graph.constants],
        [_value(name, graph) for name in node.outputs],
        [numpy_helper.from_array(tensors[name].numpy(), name) for name in node.inputs if name in graph.constants],
    )
    single = OnnxGraph(proto)
    try:
        converter = get_converter(node.op, OPSET)
        result = converter(next(iter(single.nodes.values())), single)
    except Exception as error:
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': not supported ({error}); replace it in the network, or report it"
        ) from error
    return Lowered(result.torch_module, tuple(result.onnx_mapping.inputs))


def _value(name: str, graph: Graph) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, graph.shapes[name])

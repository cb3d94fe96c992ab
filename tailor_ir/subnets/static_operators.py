"""Static operators through onnx2torch: one node at a time, its constants as initializers."""

from collections.abc import Sequence

import onnx
from onnx import helper, numpy_helper

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops.registry import Lowered
from tailor_ir.reading.trace import OPSET


def onnx_node(node: Node) -> onnx.NodeProto:
    """The node as ONNX."""
    proto = helper.make_node(node.op, list(node.inputs), list(node.outputs), name=node.name)
    proto.attribute.extend(helper.make_attribute(k, list(v) if isinstance(v, tuple) else v) for k, v in node.attributes)
    return proto


def convert_static(node: Node, graph: Graph, tensors: Tensors) -> Lowered:
    """The torch module of a node without parameters, and the values with which it is called.

    onnx2torch gets generated names, since the network's names may come from an untrusted file.
    """
    from onnx2torch.node_converters.registry import get_converter  # takes seconds, since it imports torchvision
    from onnx2torch.onnx_graph import OnnxGraph

    own = {name: f"value{i}" for i, name in enumerate(dict.fromkeys((*node.inputs, *node.outputs))) if name}
    proto = onnx_node(node)
    proto.name = "node"
    proto.input[:] = [own.get(name, "") for name in node.inputs]
    proto.output[:] = [own.get(name, "") for name in node.outputs]
    constants = [name for name in node.inputs if name in graph.constants]
    static = helper.make_graph(
        [proto],
        "static",
        [_value(own[name], graph.shapes[name]) for name in node.inputs if name and name not in constants],
        [_value(own[name], graph.shapes[name]) for name in node.outputs],
        [numpy_helper.from_array(tensors[name].numpy(), own[name]) for name in constants],
    )
    single = OnnxGraph(static)
    try:
        converter = get_converter(node.op, OPSET)
        result = converter(next(iter(single.nodes.values())), single)
    except Exception as error:
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name}': not supported ({error}); replace it in the network, or report it"
        ) from error
    names = {ours: name for name, ours in own.items()}
    return Lowered(result.torch_module, tuple(names.get(value, value) for value in result.onnx_mapping.inputs))


def _value(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

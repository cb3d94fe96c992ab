"""Read files in QDQ form (QuantizeLinear beside DequantizeLinear) as the float32 network before quantisation."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tailor_ir.errors import ImportFailed

PAIR = ("QuantizeLinear", "DequantizeLinear")
MOVING = frozenset(
    ("Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze",
     "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators that commute with quantisation: they select or move values."""
POOLING = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
NOT_NEGATIVE = frozenset(("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus"))


def quantisation_remark(model: onnx.ModelProto) -> tuple[str, ...]:
    """A remark for a quantised file; () for other files."""
    stored = {tensor.name for tensor in model.graph.initializer}
    found = [node for node in model.graph.node if node.op_type == PAIR[0] and node.input[0] not in stored]
    found = found or [node for node in model.graph.node if node.op_type == PAIR[1]]
    if not found:
        return ()
    first = found[0].name or found[0].output[0]
    return (
        f"the file is quantised: {len(found)} times {found[0].op_type}, first at '{first}', were left out; the network is read "
        "as float32, with the weights that its integers stand for; fine-tune it, and quantise its SubNets anew",
    )


def drop_quantisation(graph: gs.Graph) -> None:
    """Remove quantisation of computed values; stored integers stay, and folding turns them into the numbers they represent.

    A range that begins at zero represents a ReLU that the quantiser removed, so it stays as a Clip.
    ImportFailed: the network computes with integers in another way.
    """
    if not any(node.op in PAIR for node in graph.nodes):
        return
    graph.toposort()
    rounded = _rounded(graph)
    for node in list(graph.nodes):
        _refuse_integers(node, rounded)
        if node.op == PAIR[1] and id(node.inputs[0]) in rounded:
            _replace(graph, node, None)
        elif node.op == PAIR[1] and not isinstance(node.inputs[0], gs.Constant) and not _is_stored(node.inputs[0]):
            _dequantise(graph, node)
    for output in graph.outputs:
        if id(output) in rounded:
            raise ImportFailed(
                f"network: its output '{output.name}' is quantised; allowed: outputs behind a DequantizeLinear; leave out the "
                "last QuantizeLinear"
            )
    for node in [node for node in graph.nodes if node.op == PAIR[0]]:
        _replace(graph, node, _range_from_zero(node))
    for tensor in graph.tensors().values():
        if id(tensor) in rounded:
            tensor.dtype = np.dtype(np.float32)
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]
    graph.cleanup(remove_unused_graph_inputs=False).toposort()


def _rounded(graph: gs.Graph) -> set[int]:
    """Identities of the computed values that are quantised."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.op == PAIR[0] or (node.op in MOVING and any(id(operand) in found for operand in node.inputs)):
            found |= {id(output) for output in node.outputs}
    return found


def _is_stored(tensor: gs.Tensor) -> bool:
    """Whether a value depends on constants alone."""
    return isinstance(tensor, gs.Constant) or (
        bool(tensor.inputs)
        and all(map(_is_stored, (i for node in tensor.inputs for i in node.inputs if not i.is_empty())))
    )


def _refuse_integers(node: gs.Node, rounded: set[int]) -> None:
    if node.op not in (PAIR[1], *MOVING) and any(id(operand) in rounded for operand in node.inputs):
        raise ImportFailed(
            f"operator '{node.op}' at '{node.name or node.outputs[0].name}': the network is quantised, and computes with "
            "integers here; allowed: fp32, and QuantizeLinear beside DequantizeLinear; give the network before quantisation"
        )


def _replace(graph: gs.Graph, node: gs.Node, upper: float | None) -> None:
    """Replace a node's result by its first operand, clipped to 0 … upper if `upper` is given."""
    source, target = node.inputs[0], node.outputs[0]
    node.inputs.clear()
    node.outputs.clear()
    if upper is None:
        graph.nodes.append(gs.Node("Identity", f"{target.name}/kept", inputs=[source], outputs=[target]))
        return
    limits = [
        gs.Constant(f"{target.name}/limit{i}", np.asarray(limit, np.float32)) for i, limit in enumerate((0, upper))
    ]
    graph.nodes.append(gs.Node("Clip", f"{target.name}/limited", inputs=[source, *limits], outputs=[target]))


def _range_from_zero(node: gs.Node) -> float | None:
    """Upper end of the range of a QuantizeLinear that cuts off negative numbers; None if it cuts off none."""
    source, scale, *zero = node.inputs
    if isinstance(source, gs.Constant) or not isinstance(scale, gs.Constant) or scale.values.size != 1:
        return None
    point = zero[0].values if zero and isinstance(zero[0], gs.Constant) else np.zeros((), np.uint8)
    if point.size != 1 or point.dtype.kind not in "iu" or int(point.reshape(())) != np.iinfo(point.dtype).min:
        return None
    return None if _is_positive(source) else float(scale.values.reshape(())) * (2 ** (8 * point.dtype.itemsize) - 1)


def _is_positive(tensor: gs.Tensor) -> bool:
    producer = tensor.inputs[0] if tensor.inputs else None
    while producer is not None and producer.op in MOVING | POOLING:
        before = producer.inputs[0].inputs
        producer = before[0] if before else None
    if producer is None:
        return False
    if producer.op == "Clip" and len(producer.inputs) > 1 and isinstance(producer.inputs[1], gs.Constant):
        return bool((producer.inputs[1].values >= 0).all())
    return producer.op in NOT_NEGATIVE


def _dequantise(graph: gs.Graph, node: gs.Node) -> None:
    """Replace a DequantizeLinear of input or computed integers by (x - zero point) · scale."""
    nodes = list(_scaled(node))
    node.inputs.clear()
    node.outputs.clear()
    graph.nodes.extend(nodes)


def _scaled(node: gs.Node) -> Iterator[gs.Node]:
    x, scale, *zero = node.inputs
    name, result = node.outputs[0].name, node.outputs[0]
    axis, rank = int(node.attrs.get("axis", 1)), len(x.shape or ())
    if not all(isinstance(each, gs.Constant) for each in (scale, *zero)):
        raise ImportFailed(f"operator '{node.op}' at '{node.name or name}': its scale is computed; allowed: constants")

    def along(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, *(1,) * (rank - 1 - axis % rank)) if values.size > 1 else values.reshape(())

    plain = gs.Variable(f"{name}/plain", np.float32, x.shape)
    yield gs.Node("Cast", f"{name}/cast", {"to": onnx.TensorProto.FLOAT}, [x], [plain])
    if zero:
        shifted = gs.Variable(f"{name}/shifted", np.float32, x.shape)
        point = gs.Constant(f"{name}/zero", along(zero[0].values.astype(np.float32)))
        yield gs.Node("Sub", f"{name}/shift", inputs=[plain, point], outputs=[shifted])
        plain = shifted
    yield gs.Node(
        "Mul", f"{name}/scale", inputs=[plain, gs.Constant(f"{name}/scaling", along(scale.values))], outputs=[result]
    )

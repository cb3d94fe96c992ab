"""Rewrites that merge common groups of ONNX operators into one node.

Each pass is `Graph -> Graph` and preserves the computed function. `Linear`, `Gelu`, `Silu`, `GroupNorm`, `RmsNorm` … are
operators of the IR; the exporter writes them as standard ONNX again (`tailor_ir/subnets/standard_operators.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.rewriting.fusions import RULES
from tailor_ir.rewriting.patterns import apply_rule
from tailor_ir.rewriting.rolls import fuse_roll
from tailor_ir.rewriting.taken_parts import take_of_parts

Pass = Callable[[Graph, Tensors], Graph]


class _Rewriter:
    """Collects replacements of nodes, with the producers and readers of each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.removed: set[str] = set()
        self.replacements: dict[str, Node] = {}

    def only_consumer(self, value: str) -> Node | None:
        users = self.consumers.get(value, [])
        return users[0] if len(users) == 1 and value not in self.graph.outputs else None

    def replace(self, last: Node, removed: list[Node], by: Node) -> None:
        self.removed.update(node.name for node in removed)
        self.replacements[last.name] = by

    def result(self) -> Graph:
        nodes = tuple(
            self.replacements.get(node.name, node) for node in self.graph.nodes if node.name not in self.removed
        )
        read = {name for node in nodes for name in node.inputs} | set(self.graph.outputs)
        while True:  # removes transposed weights that only rewritten nodes read
            alive = tuple(node for node in nodes if any(output in read for output in node.outputs))
            if len(alive) == len(nodes):
                return self.graph.with_nodes(nodes)
            nodes = alive
            read = {name for node in nodes for name in node.inputs} | set(self.graph.outputs)


def fuse_linear(graph: Graph, tensors: Tensors) -> Graph:
    """Replace Gemm and MatMul by a (transposed) weight, with or without bias, by `Linear(x, weight (out, in)[, bias])`."""
    graph = _flatten_biases(_turn_weights(graph, tensors), tensors)
    rewriter = _Rewriter(graph)
    parameters = set(graph.parameters)
    for node in graph.nodes:
        if node.op == "Gemm" and node.int("transB", 0) == 1 and node.int("transA", 0) == 0:
            plain = node.float("alpha", 1.0) == 1.0 and node.float("beta", 1.0) == 1.0
            if node.inputs[1] in parameters and plain and _has_bias_of_layer(node, graph):
                rewriter.replace(node, [], replace(node, op="Linear", attributes=()))
        elif node.op == "MatMul":
            _fuse_matmul(rewriter, node, parameters)
    return rewriter.result()


def _turn_weights(graph: Graph, tensors: Tensors) -> Graph:
    """Store weights (in, out) of MatMuls and Gemms as (out, in), as in torch modules; a MatMul gets a Transpose before it."""
    parameters, readers = set(graph.parameters), graph.consumers()
    shapes = dict(graph.shapes)
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = node.inputs[1] if node.op in ("MatMul", "Gemm") else ""
        plain = node.op == "MatMul" or node.int("transB", 0) == 0
        if weight in parameters and plain and len(shapes[weight]) == 2 and len(readers[weight]) == 1:
            tensors[weight] = tensors[weight].T.contiguous()
            shapes[weight] = shapes[weight][::-1]
            if node.op == "Gemm":
                node = replace(node, attributes=(*(a for a in node.attributes if a[0] != "transB"), ("transB", 1)))
            else:
                turned = f"{weight}/turned"
                shapes[turned] = shapes[weight][::-1]
                nodes.append(
                    Node(
                        name=f"{node.name}/turn",
                        op="Transpose",
                        inputs=(weight,),
                        outputs=(turned,),
                        attributes=(("perm", (1, 0)),),
                    )
                )
                node = replace(node, inputs=(node.inputs[0], turned))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), shapes=shapes)


def _flatten_biases(graph: Graph, tensors: Tensors) -> Graph:
    """Reshape biases (1, O) of Gemms to (O), as in torch modules."""
    parameters, readers = set(graph.parameters), graph.consumers()
    shapes = dict(graph.shapes)
    for node in graph.nodes:
        bias = node.inputs[2] if node.op == "Gemm" and len(node.inputs) > 2 else ""
        if bias in parameters and shapes[bias] == (1, shapes[node.outputs[0]][1]) and len(readers[bias]) == 1:
            tensors[bias] = tensors[bias].reshape(-1)
            shapes[bias] = shapes[bias][1:]
    return replace(graph, shapes=shapes)


def _has_bias_of_layer(node: Node, graph: Graph) -> bool:
    """Whether a Gemm adds nothing or one number per output; Gemms with other sums, such as one number for all, stay Gemms."""
    return len(node.inputs) < 3 or graph.shapes[node.inputs[2]] == graph.shapes[node.outputs[0]][1:]


def _fuse_matmul(rewriter: _Rewriter, node: Node, parameters: set[str]) -> None:
    transpose = rewriter.producers.get(node.inputs[1])
    if transpose is None or transpose.op != "Transpose" or transpose.inputs[0] not in parameters:
        return
    weight = transpose.inputs[0]
    if len(rewriter.graph.shapes[weight]) != 2:
        return
    inputs = (node.inputs[0], weight)
    add = rewriter.only_consumer(node.outputs[0])
    bias = next((name for name in add.inputs if name in parameters), None) if add and add.op == "Add" else None
    if add is not None and bias is not None and rewriter.graph.shapes[bias] == (rewriter.graph.shapes[weight][0],):
        linear = Node(name=node.name, op="Linear", inputs=(*inputs, bias), outputs=add.outputs)
        rewriter.replace(add, [node], linear)
    else:
        rewriter.replace(node, [], Node(name=node.name, op="Linear", inputs=inputs, outputs=node.outputs))


def fuse_known_groups(graph: Graph, tensors: Tensors) -> Graph:
    """Replace activations and normalisations that exporters write as several nodes by one node."""
    for rule in RULES:
        graph = apply_rule(graph, tensors, rule)
    return graph


def drop_expansions(graph: Graph, tensors: Tensors) -> Graph:
    """Remove an Expand if all its readers broadcast anyway, because another operand already has the shape."""
    consumers, outputs = graph.consumers(), set(graph.outputs)
    alias: dict[str, str] = {}
    for node in graph.nodes:
        result = node.outputs[0]
        if node.op != "Expand" or result in outputs or len(graph.shapes[node.inputs[0]]) > len(graph.shapes[result]):
            continue
        readers = consumers.get(result, [])
        if readers and all(_broadcasts_to(reader, result, graph) for reader in readers):
            alias[result] = node.inputs[0]
    nodes = [node for node in graph.nodes if node.op != "Expand" or node.outputs[0] not in alias]
    nodes = [replace(node, inputs=tuple(_source(name, alias) for name in node.inputs)) for node in nodes]
    return graph.with_nodes(tuple(nodes))


def _source(name: str, alias: Mapping[str, str]) -> str:
    while name in alias:
        name = alias[name]
    return name


def _broadcasts_to(reader: Node, name: str, graph: Graph) -> bool:
    others = [other for other in reader.inputs if other != name]
    return reader.op in BROADCASTING and any(graph.shapes[other] == graph.shapes[name] for other in others)


PASSES: tuple[Pass, ...] = (fuse_linear, drop_expansions, take_of_parts, fuse_known_groups, fuse_roll)
BROADCASTING = frozenset(("Add", "Div", "Mul", "Sub"))


def simplify(graph: Graph, tensors: Tensors) -> tuple[Graph, Tensors]:
    """Apply all passes in order and drop tensors that nothing reads any more."""
    for rewrite in PASSES:
        graph = rewrite(graph, tensors)
    return graph, {name: tensor for name, tensor in tensors.items() if name in graph.initializers}

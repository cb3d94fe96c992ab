"""Clusters: the nodes of a network that run as one operator."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.ops.elementwise import ACTIVATIONS

Cluster = tuple[Node, ...]

ANCHORS = frozenset(("Conv", "Linear"))  # BatchNorm and an activation after these run inside them
LAYOUT = frozenset(("Reshape", "Transpose", "Split", "Squeeze", "Unsqueeze", "Softmax", "MatMul"))
ELEMENTWISE = frozenset(("Add", "Mul", "Div", "Sub", "Where"))


class _Sets:
    """Disjoint sets of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {name: name for name in names}

    def __getitem__(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self[a]] = self[b]


class _Clusters:
    """Joins the nodes of one network."""

    def __init__(self, graph: Graph, tensors: Tensors, unit_of: Mapping[str, Hashable]) -> None:
        self.graph, self.tensors, self.unit_of = graph, tensors, unit_of
        self.data = graph.data_values()
        self.nodes = [node for node in graph.nodes if any(output in self.data for output in node.outputs)]
        self.consumers, self.producers = graph.consumers(), graph.producers()
        self.sets = _Sets(node.name for node in self.nodes)

    def find(self) -> tuple[Cluster, ...]:
        self._join_epilogues()
        self._join_attention()
        members: dict[str, list[Node]] = {}
        for node in self.nodes:
            members.setdefault(self.sets[node.name], []).append(node)
        return tuple(tuple(cluster) for cluster in members.values())

    def _same_unit(self, a: Node, b: Node) -> bool:
        return self.unit_of[a.name] == self.unit_of[b.name]

    def _join_epilogues(self) -> None:
        anchored = {node.name for node in self.nodes if node.op in ANCHORS and node.inputs[1] not in self.data}
        for node in self.nodes:
            before = self.producers.get(node.inputs[0])
            fusible = node.op == "BatchNormalization" or node.op in ACTIVATIONS
            if before is None or not fusible or before.name not in anchored or not self._same_unit(before, node):
                continue
            if node.op == "BatchNormalization" and not self.graph.norms_results(before, node):
                continue
            if len(self.consumers[node.inputs[0]]) == 1 and node.inputs[0] not in self.graph.outputs:
                self.sets.join(node.name, before.name)
                if node.op == "BatchNormalization":
                    anchored.add(node.name)

    def _join_attention(self) -> None:
        """Join everything without weights around the matrix products of an attention into one operator."""
        inner = {n.name: n for n in self.nodes if n.op in LAYOUT or self._scales(n)}
        inner |= {n.name: n for n in self.nodes if self._biases(n, inner)}
        joined = _Sets(inner)
        for node in inner.values():
            for user in self._users(node):
                if user.name in inner and self._same_unit(user, node):
                    joined.join(user.name, node.name)
        products: dict[str, int] = {}
        for node in inner.values():
            if node.op == "MatMul" and all(name in self.data for name in node.inputs):
                products[joined[node.name]] = products.get(joined[node.name], 0) + 1
        for name in inner:
            if products.get(joined[name], 0) > 1:
                self.sets.join(name, joined[name])

    def _users(self, node: Node) -> Sequence[Node]:
        return [user for output in node.outputs for user in self.consumers.get(output, ())]

    def _scales(self, node: Node) -> bool:
        """Whether a node multiplies by one constant number."""
        return node.op in ("Mul", "Div") and any(
            name in self.tensors and self.tensors[name].numel() == 1 for name in node.inputs
        )

    def _biases(self, node: Node, inner: Mapping[str, Node]) -> bool:
        """Whether a node adds (or multiplies by, or masks with) weights between two nodes of an attention."""
        computed = [name for name in node.inputs if name in self.data]
        before = self.producers.get(computed[0]) if computed else None
        users = self._users(node)
        return (
            node.op in ELEMENTWISE
            and len(computed) == 1
            and before is not None
            and (before.op in ("MatMul", "Reshape") or self._scales(before))
            and bool(users)
            and all(user.op in ("Softmax", "Reshape") and user.name in inner for user in users)
        )


def find_clusters(graph: Graph, tensors: Tensors, unit_of: Mapping[str, Hashable]) -> tuple[Cluster, ...]:
    """The nodes that depend on the network's input, grouped into operators; in order of each group's first node.

    tensors: the constants. unit_of: `Structure.unit_of`; nodes of different units are never in one operator, since a SubNet may
    have only one of them.
    """
    return _Clusters(graph, tensors, unit_of).find()

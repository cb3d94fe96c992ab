"""Residual blocks inside larger regions: in the branches of a network with parallel values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailor_ir.graph import Graph, Node
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.structure.propagation import AxisMap

MIXING = frozenset(("Conv", "ConvTranspose", "Einsum", "Embedding", "GRU", "Gemm", "LSTM", "Linear", "MatMul", "RNN"))


def side_values(graph: Graph) -> frozenset[str]:
    """Values of a network with several inputs that only accompany its features, such as masks; blocks may read them.

    They are computed from the inputs without layers that have weights, and are not inputs of such layers.
    """
    if len(graph.inputs) == 1:
        return frozenset()
    data = graph.data_values()
    weights = set(graph.parameters)
    features: set[str] = set()
    for node in graph.nodes:
        read = [name for name in node.inputs if name]
        if node.outputs[0] not in data:
            weights.update(node.outputs if not weights.isdisjoint(read) else ())
        elif not features.isdisjoint(read) or (node.op in MIXING and not weights.isdisjoint(read)):
            features.update(node.outputs)
    side = set(data) - features
    for node in reversed(graph.nodes):
        goes_on = not side.issuperset(node.outputs) and features.isdisjoint(node.outputs)
        if goes_on or (node.op in MIXING and not weights.isdisjoint(node.inputs)):
            side.difference_update(node.inputs)
    return frozenset(side)


@dataclass(frozen=True, slots=True)
class ResidualRegion:
    """Nodes that compute `exit` from `entry` alone and add `entry` to the result; nothing else reads their inner values."""

    nodes: tuple[Node, ...]
    entry: str
    exit: str


class _Finder:
    """The search for residual blocks: producers and readers of each value of a network."""

    def __init__(self, graph: Graph, axis_map: AxisMap) -> None:
        self.axes = axis_map.axes
        self.data = graph.data_values() - side_values(graph)
        self.outputs = frozenset(graph.outputs)
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.position = {node.name: i for i, node in enumerate(graph.nodes)}

    def region(self, add: Node) -> ResidualRegion | None:
        """The smallest residual region that ends in an Add."""
        operands = [name for name in add.inputs if name in self.data]
        if len(operands) != 2:
            return None
        for entry, computed in (operands, operands[::-1]):
            inside = self._between(entry, computed)
            if inside is None or self.axes[entry] != self.axes[add.outputs[0]]:
                continue
            nodes = {node.name: node for node in (*inside, add)}
            if all(self._read_inside(node, nodes) for node in inside):
                return self._with_activation(entry, sorted(nodes.values(), key=lambda n: self.position[n.name]))
        return None

    def _between(self, entry: str, last: str) -> list[Node] | None:
        """The nodes that compute `last` from `entry`; None if they need other values, too."""
        first = self.position[self.producers[entry].name] if entry in self.producers else -1
        found: dict[str, Node] = {}
        pending = [last]
        while pending:
            name = pending.pop()
            if name == entry or name not in self.data:
                continue
            node = self.producers.get(name)
            if node is None or self.position[node.name] <= first:
                return None
            if node.name not in found:
                found[node.name] = node
                pending += [i for i in node.inputs if i]
        return list(found.values()) or None

    def _read_inside(self, node: Node, nodes: Mapping[str, Node]) -> bool:
        return not any(
            output in self.outputs or any(user.name not in nodes for user in self.consumers.get(output, []))
            for output in node.outputs
        )

    def _with_activation(self, entry: str, nodes: list[Node]) -> ResidualRegion:
        last = nodes[-1].outputs[0]
        users = self.consumers.get(last, [])
        if len(users) == 1 and users[0].op in ACTIVATIONS and last not in self.outputs:
            nodes.append(users[0])
        return ResidualRegion(tuple(nodes), entry, nodes[-1].outputs[0])


def find_residuals(graph: Graph, axis_map: AxisMap, within: Sequence[Node]) -> list[list[ResidualRegion]]:
    """Chains of residual regions among some nodes, none inside another; each begins where the one before it ends."""
    finder = _Finder(graph, axis_map)
    names = {node.name for node in within}
    found = [region for node in within if node.op == "Add" and (region := finder.region(node)) is not None]
    found = [region for region in found if all(node.name in names for node in region.nodes)]
    found.sort(key=lambda region: -len(region.nodes))
    taken: set[str] = set()
    outer: list[ResidualRegion] = []
    for region in found:
        if not any(node.name in taken for node in region.nodes):
            outer.append(region)
            taken.update(node.name for node in region.nodes)
    outer.sort(key=lambda region: finder.position[region.nodes[0].name])
    chains: list[list[ResidualRegion]] = []
    for region in outer:
        chain = next((c for c in chains if c[-1].exit == region.entry), None)
        if chain is None:
            chains.append([region])
        else:
            chain.append(region)
    return chains

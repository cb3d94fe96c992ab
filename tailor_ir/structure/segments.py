"""Segments of a network, found by dependency, and residual blocks in the branches of a network with parallel values.

A *cut value* is on every path from input to output; a *segment* is the part between two neighbouring cut values.
Residual blocks lie inside larger regions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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


NORMS = frozenset(("LayerNormalization", "RmsNorm", "GroupNorm", "BatchNormalization"))
SUMS = frozenset(("Add", "Sub"))
LAYERS = frozenset(("Conv", "ConvTranspose", "Linear"))
MANY_IN_A_ROW, MANY_LAYERS = 4, 6
"""Layer counts that exceed one block: in a plain row, and with other layers beside the row, as with squeeze and excitation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of the network with one entry and one exit. `residual`: an Add joins the entry with the computed value.

    `nested`: it is part of a branch of a larger region.
    """

    nodes: tuple[Node, ...]
    entry: str
    exit: str
    residual: bool = False
    skippable: bool = False
    nested: bool = False
    kind: str = "Plain"

    @property
    def gives_exit(self) -> bool:
        """Whether one of its own nodes gives the exit; otherwise a nested block at its end does."""
        return any(self.exit in node.outputs for node in self.nodes)


def find_segments(graph: Graph, axis_map: AxisMap) -> list[Block]:
    """The segments of a network; activations and (post-norm) normalisations are joined to the segment before them.

    A sum around nearly everything, as in networks that compute a correction of their input, makes everything one segment. If it
    is the only such sum, its inside is divided as if the sum did not exist.
    """
    segments = _segments(graph, axis_map)
    closing = [segment for segment in segments if _closes(segment)]
    if len(closing) == 1 and not any(segment.residual for segment in segments if segment is not closing[0]):
        divided = _segments(graph, axis_map, closing[0])
        if _holds_network([segment for segment in divided if segment not in segments], axis_map):
            segments = divided
    return _absorb_norms(_absorb_activations(segments))


def _closes(segment: Block) -> bool:
    """Whether a segment ends with a sum of its entry and a value computed from it."""
    last = segment.nodes[-1]
    return len(segment.nodes) > 1 and last.op in SUMS and segment.entry in last.inputs


def _holds_network(inside: Sequence[Block], axis_map: AxisMap) -> bool:
    """Whether the inside of a sum has several skippable segments, or more layers than one block."""
    layers = [
        [node for node in segment.nodes if node.op in LAYERS and not depthwise(node, axis_map)] for segment in inside
    ]
    in_a_row = max(map(len, layers), default=0) <= 1 and not any(
        depthwise(node, axis_map) for segment in inside for node in segment.nodes
    )
    count = sum(map(len, layers))
    return sum(segment.skippable for segment in inside) > 1 or count >= (MANY_IN_A_ROW if in_a_row else MANY_LAYERS)


def _segments(graph: Graph, axis_map: AxisMap, around: Block | None = None) -> list[Block]:
    """Cut the data path wherever a single value is alive, ignoring accompanying values.

    around: a segment whose last node's read of the entry is ignored.
    """
    side = side_values(graph)
    data = graph.data_values() - side
    pending = {
        name: sum(1 for user in users if any(o in data for o in user.outputs))
        for name, users in graph.consumers().items()
    }
    if around is not None:
        pending[around.entry] -= 1
    alive: set[str] = set(graph.inputs) - side
    segments: list[Block] = []
    nodes: list[Node] = []
    entry = next((name for name in graph.inputs if name in alive), graph.inputs[0])
    for node in graph.nodes:
        if not any(output in data for output in node.outputs):
            continue
        nodes.append(node)
        for name in dict.fromkeys(node.inputs):
            if name in data and not (around is not None and node is around.nodes[-1] and name == around.entry):
                pending[name] -= 1
                if not pending[name]:
                    alive.discard(name)
        alive.update(output for output in node.outputs if pending.get(output) or output in graph.outputs)
        if len(alive) == 1 and next(iter(alive)) in node.outputs:
            segments.append(_segment(tuple(nodes), entry, next(iter(alive)), graph, axis_map))
            entry, nodes = segments[-1].exit, []
    if nodes:
        given = {output for node in nodes for output in node.outputs}
        last = next((name for name in graph.outputs if name in given), graph.outputs[0])
        segments.append(_segment(tuple(nodes), entry, last, graph, axis_map))
    return segments


def reads_entry_alone(nodes: Sequence[Node], entry: str, graph: Graph) -> bool:
    """Whether nodes read no input of the network other than their entry."""
    others = set(graph.inputs) - {entry} - side_values(graph)
    return not any(name in others for node in nodes for name in node.inputs)


def _segment(nodes: tuple[Node, ...], entry: str, exit_value: str, graph: Graph, axis_map: AxisMap) -> Block:
    readers = sum(entry in node.inputs for node in nodes)
    residual = nodes[-1].op == "Add" and readers > 1 and nodes[-1].outputs[0] == exit_value
    residual = residual and reads_entry_alone(nodes, entry, graph)
    same = axis_map.axes[entry] == axis_map.axes[exit_value]
    return Block(nodes=nodes, entry=entry, exit=exit_value, residual=residual, skippable=residual and same)


def _absorb(segments: Sequence[Block], joins: Callable[[int], bool]) -> list[Block]:
    """The segments, some of which are joined to the segment before them. joins: by position; false for the first."""
    result: list[Block] = []
    for index, segment in enumerate(segments):
        if joins(index):
            result[-1] = replace(result[-1], nodes=result[-1].nodes + segment.nodes, exit=segment.exit)
        else:
            result.append(segment)
    return result


def _absorb_activations(segments: list[Block]) -> list[Block]:
    def follows(index: int) -> bool:
        nodes = segments[index].nodes
        return index > 0 and len(nodes) == 1 and nodes[0].op in ACTIVATIONS

    return _absorb(segments, follows)


def _absorb_norms(segments: list[Block]) -> list[Block]:
    """Join normalisations to the blocks before them if every block is normalised after its sum (post-norm)."""

    def follows(index: int) -> bool:
        nodes = segments[index].nodes
        return index > 0 and segments[index - 1].residual and len(nodes) == 1 and nodes[0].op in NORMS

    count = sum(map(follows, range(len(segments))))
    return segments if 2 * count <= sum(segment.residual for segment in segments) else _absorb(segments, follows)


def depthwise(node: Node, axis_map: AxisMap) -> bool:
    """Whether a node is a depthwise convolution."""
    if node.op != "Conv" or node.int("group", 1) == 1:
        return False
    weight, x = axis_map.axes[node.inputs[1]], axis_map.axes[node.inputs[0]]
    return weight[0] == x[1] and weight[1].size == 1

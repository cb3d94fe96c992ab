"""A part of a SubNet: some of its nodes, with their inputs and outputs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailor_ir.graph import Graph, Node
from tailor_ir.ops import OPERATORS
from tailor_ir.spaces.structure import Subnet


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes of a SubNet.

    subnet: the nodes, with all nodes that depend on weights alone, and their outputs. inputs: the values of the network's input
    and of earlier parts that they read.
    """

    subnet: Subnet
    inputs: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values that the part gives."""
        return self.subnet.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart(Part):
    """The nodes between an exit and the one before it. outputs: the answer (B, K), then values for later parts."""

    exit: str


def reads(graph: Graph, node: Node) -> tuple[str, ...]:
    """The values with which a node's module is called; some modules read the network's input for the number of samples."""
    return (*node.inputs, graph.batched_input) if OPERATORS[node.op].needs_batch else node.inputs


def needed_for(value: str, nodes: Sequence[Node], known: frozenset[str]) -> tuple[Node, ...]:
    """The nodes, in order, that compute a value from known values."""
    needed, found = {value} - known, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.inputs if name not in known)
            found.append(node)
    return tuple(found[::-1])

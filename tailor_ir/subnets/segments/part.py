"""A part of a SubNet: some of its nodes, with the values that it reads and gives."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailor_ir.graph import Graph, Node
from tailor_ir.ops import OPERATORS
from tailor_ir.spaces.structure import Subnet


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nodes of a SubNet.

    subnet: the nodes, with all that depend on weights alone, and the values that they give. inputs: values of the network's
    input and of earlier parts that they read.
    """

    subnet: Subnet
    inputs: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values that the part gives."""
        return self.subnet.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart(Part):
    """What is computed between an exit and the one before it. outputs: the answer (B, K), then values for later parts."""

    exit: str


def reads(graph: Graph, node: Node) -> tuple[str, ...]:
    """The values that a node's module is called with; some ask the network's input for the number of samples."""
    return (*node.inputs, graph.batched_input) if OPERATORS[node.op].needs_batch else node.inputs


def needed_for(value: str, nodes: Sequence[Node], known: frozenset[str]) -> tuple[Node, ...]:
    """Of nodes in order those that compute a value from values that are known."""
    needed, found = {value} - known, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.inputs if name not in known)
            found.append(node)
    return tuple(found[::-1])

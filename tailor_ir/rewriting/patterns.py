"""Patterns of nodes: small trees that are matched with the nodes that compute a value.

A pattern is `Value` (any value; the same name twice requires the same value), `Number` (a constant), `Op` (a node whose
operands are patterns; Add and Mul match in either order) or `Either`. A `RewriteRule` replaces every match by one node if
nothing else reads its inner values.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailor_ir.graph import Graph, Node, Tensors

COMMUTATIVE = frozenset(("Add", "Mul"))
CLOSE = 1e-4  # relative; constants were rounded to float32 and by people


@dataclass(frozen=True, slots=True)
class Value:
    """Any value."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of one element; with a name, any number matches and is recorded, else the number must be `value`."""

    value: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """A node with one result. `operands` may be fewer than the node's: the others are ignored. `name` records the node."""

    op: str
    operands: tuple["Pattern", ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Either:
    """Alternative patterns, tried in order."""

    options: tuple["Pattern", ...]


Pattern = Value | Number | Op | Either


@dataclass(frozen=True, slots=True)
class Match:
    """Values, numbers and nodes by name in the pattern, and the nodes that the pattern covers, the last node first."""

    values: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    named: dict[str, Node] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """`build` returns the operator, operands and attributes that replace a match, or None if the rule does not apply."""

    pattern: Op
    build: "Build"


Replacement = tuple[str, tuple[str, ...], dict[str, "int | float | str"]]
Build = Callable[[Match, Graph, Tensors], Replacement | None]


class Matcher:
    """Matches patterns with one graph."""

    def __init__(self, graph: Graph, tensors: Tensors) -> None:
        self.graph, self.tensors = graph, tensors
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.parameters = frozenset(graph.parameters)

    def matches(self, pattern: Pattern, value: str, found: Match) -> Iterator[Match]:
        """All matches of `pattern` with the nodes that compute `value`."""
        match pattern:
            case Value():
                if found.values.get(pattern.name, value) == value:
                    yield Match(found.values | {pattern.name: value}, found.numbers, found.named, found.nodes)
            case Number():
                number = self._number(value)
                if number is not None and pattern.name:
                    yield Match(found.values, found.numbers | {pattern.name: number}, found.named, found.nodes)
                elif number is not None and math.isclose(number, pattern.value, rel_tol=CLOSE):
                    yield found
            case Either():
                for option in pattern.options:
                    yield from self.matches(option, value, found)
            case Op():
                node = self.producers.get(value)
                if node is not None:
                    yield from self.at(pattern, node, found)

    def at(self, pattern: Op, node: Node, found: Match) -> Iterator[Match]:
        """All matches of `pattern` with `node`."""
        if node.op != pattern.op or len(node.outputs) != 1 or len(node.inputs) < len(pattern.operands):
            return
        named = found.named | {pattern.name: node} if pattern.name else found.named
        start = Match(found.values, found.numbers, named, (*found.nodes, node))
        orders = [pattern.operands]
        if node.op in COMMUTATIVE and len(pattern.operands) == 2:
            orders.append(pattern.operands[::-1])
        for operands in orders:
            yield from self._all(operands, node.inputs, start)

    def _all(self, patterns: tuple[Pattern, ...], values: tuple[str, ...], found: Match) -> Iterator[Match]:
        if not patterns:
            yield found
            return
        for first in self.matches(patterns[0], values[0], found):
            yield from self._all(patterns[1:], values[1:], first)

    def _number(self, value: str) -> float | None:
        tensor = self.tensors.get(value)
        if tensor is None or tensor.numel() != 1 or value in self.parameters:
            return None
        return float(tensor)

    def closed(self, found: Match) -> bool:
        """Whether nothing outside the match reads its inner values."""
        names = {node.name for node in found.nodes}
        inner = {output for node in found.nodes[1:] for output in node.outputs}
        readers = {user.name for output in inner for user in self.consumers.get(output, ())}
        return readers <= names and inner.isdisjoint(self.graph.outputs)


def apply_rule(graph: Graph, tensors: Tensors, rule: RewriteRule) -> Graph:
    """The graph with every match of a rule replaced by one node."""
    matcher = Matcher(graph, tensors)
    replaced: dict[str, Node] = {}
    removed: set[str] = set()
    for node in graph.nodes:
        for found in matcher.at(rule.pattern, node, Match()):
            names = {covered.name for covered in found.nodes}
            if names & removed or names & replaced.keys() or not matcher.closed(found):
                continue
            built = rule.build(found, graph, tensors)
            if built is None:
                continue
            op, inputs, attributes = built
            replaced[node.name] = Node(
                name=node.name, op=op, inputs=inputs, outputs=node.outputs, attributes=tuple(sorted(attributes.items()))
            )
            removed |= names - {node.name}
            break
    if not replaced:
        return graph
    nodes = tuple(replaced.get(node.name, node) for node in graph.nodes if node.name not in removed)
    return graph.with_nodes(alive(graph, nodes))


def alive(graph: Graph, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes whose results are read."""
    read = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if any(output in read for output in node.outputs):
            kept.append(node)
            read.update(node.inputs)
    return tuple(reversed(kept))

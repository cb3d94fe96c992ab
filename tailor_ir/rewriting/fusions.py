"""Rules for groups of nodes that exporters write for one operator (activations, normalisations), and patterns of nodes.

Patterns are small trees that are matched with the nodes that compute a value. A pattern is `Value` (any value; the same
name twice requires the same value), `Number` (a constant), `Op` (a node whose operands are patterns; Add and Mul match
in either order) or `Either`. A `RewriteRule` replaces every match by one node if nothing else reads its inner values.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailor_ir.graph import Graph, Node, Tensors, needed

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
    return graph.with_nodes(needed(nodes, graph.outputs))


X = Value("x")


def _mul(a: Pattern, b: Pattern) -> Op:
    return Op("Mul", (a, b))


def _add(a: Pattern, b: Pattern) -> Op:
    return Op("Add", (a, b))


def _half_of(factor: Pattern) -> tuple[Op, ...]:
    """½ · x · factor in its usual orders."""
    half = Number(0.5)
    return (_mul(_mul(X, factor), half), _mul(X, _mul(factor, half)), _mul(_mul(X, half), factor))


def _activation(op: str, **attributes: int | float | str) -> Build:
    def build(found: Match, graph: Graph, tensors: Tensors) -> Replacement:
        return op, (found.values["x"],), attributes

    return build


_ERF = _add(Op("Erf", (Either((Op("Div", (X, Number(math.sqrt(2)))), _mul(X, Number(math.sqrt(0.5))))),)), Number(1.0))
_SQUARE = Either((_mul(X, X), Op("Pow", (X, Number(2.0)))))
_CUBE = Either((Op("Pow", (X, Number(3.0))), _mul(X, _SQUARE)))
_SCALE = Number(math.sqrt(2 / math.pi))
_TANH = _add(
    Op(
        "Tanh",
        (
            Either(
                (
                    _mul(_SCALE, _add(X, _mul(Number(0.044715), _CUBE))),
                    _mul(_mul(X, _SCALE), _add(_mul(_mul(Number(0.044715), X), X), Number(1.0))),
                    _mul(_mul(X, _SCALE), _add(_mul(Number(0.044715), _SQUARE), Number(1.0))),
                )
            ),
        ),
    ),
    Number(1.0),
)


def _hard_swish(found: Match, graph: Graph, tensors: Tensors) -> Replacement | None:
    gate = found.named["gate"]
    plain = math.isclose(gate.float("alpha", 0.2), 1 / 6, rel_tol=1e-4) and gate.float("beta", 0.5) == 0.5
    return ("HardSwish", (found.values["x"],), {}) if plain else None


ACTIVATIONS = (
    *(RewriteRule(pattern, _activation("Gelu")) for pattern in _half_of(_ERF)),
    *(RewriteRule(pattern, _activation("Gelu", approximate="tanh")) for pattern in _half_of(_TANH)),
    RewriteRule(_mul(X, Op("Sigmoid", (X,))), _activation("Silu")),
    RewriteRule(_mul(X, Op("Tanh", (Op("Softplus", (X,)),))), _activation("Mish")),
    RewriteRule(_mul(X, Op("HardSigmoid", (X,), "gate")), _hard_swish),
    RewriteRule(
        Op("Div", (_mul(X, Op("Clip", (_add(X, Number(3.0)), Number(0.0), Number(6.0)))), Number(6.0))),
        _activation("HardSwish"),
    ),
    RewriteRule(
        _mul(X, Op("Div", (Op("Clip", (_add(X, Number(3.0)), Number(0.0), Number(6.0))), Number(6.0)))),
        _activation("HardSwish"),
    ),
)


def _vector(name: str, axis: int, rank: int, size: int, graph: Graph) -> str | None:
    """The tensor (size,) that `name` broadcasts along `axis` of a tensor of `rank`; None for other tensors."""
    shape = graph.shapes[name]
    padded = (1,) * (rank - len(shape)) + shape
    if padded != tuple(size if position == axis else 1 for position in range(rank)):
        return None
    if len(shape) == 1:
        return name
    producers = graph.producers()
    while graph.shapes[name] != (size,):
        producer = producers.get(name)
        if producer is None or producer.op not in ("Reshape", "Unsqueeze"):
            return None
        name = producer.inputs[0]
    return name


def _reduced_axis(node: Node, rank: int) -> int | None:
    """The only axis of a reduction with kept dimensions; None for other reductions."""
    axes = node.ints("axes", ())
    return axes[0] % rank if len(axes) == 1 and node.int("keepdims", 1) else None


# -- root mean square ------------------------------------------------------------------------------------------------

_MEAN_SQUARE = Op("ReduceMean", (_SQUARE,), "mean")
_ROOT = Op("Sqrt", (_add(_MEAN_SQUARE, Number(name="epsilon")),))
_NORMALISED = Either(
    (_mul(X, Either((Op("Div", (Number(1.0), _ROOT)), Op("Reciprocal", (_ROOT,))))), Op("Div", (X, _ROOT)))
)


def _rms_norm(found: Match, graph: Graph, tensors: Tensors) -> Replacement | None:
    x = found.values["x"]
    shape = graph.shapes[x]
    axis = _reduced_axis(found.named["mean"], len(shape))
    if axis is None:
        return None
    scale = _vector(found.values["scale"], axis, len(shape), shape[axis], graph)
    if scale is None:
        return None
    return "RmsNorm", (x, scale), {"axis": axis, "epsilon": found.numbers["epsilon"]}


RMS_NORM = RewriteRule(_mul(_NORMALISED, Value("scale")), _rms_norm)

# -- layer norm ------------------------------------------------------------------------------------------------------

_CENTRED = Op("Sub", (X, Op("ReduceMean", (X,), "mean")))
_VARIANCE = Op("ReduceMean", (Either((Op("Pow", (_CENTRED, Number(2.0))), _mul(_CENTRED, _CENTRED))),), "variance")
_DEVIATION = Op("Sqrt", (_add(_VARIANCE, Number(name="epsilon")),))
_STANDARD = Either((Op("Div", (_CENTRED, _DEVIATION)), _mul(_CENTRED, Op("Reciprocal", (_DEVIATION,)))))


def _layer_norm(found: Match, graph: Graph, tensors: Tensors) -> Replacement | None:
    x, scale, bias = (found.values[name] for name in ("x", "scale", "bias"))
    shape = graph.shapes[x]
    axes = {_reduced_axis(found.named[name], len(shape)) for name in ("mean", "variance")}
    if axes != {len(shape) - 1} or graph.shapes[scale] != shape[-1:] or graph.shapes[bias] != shape[-1:]:
        return None
    return "LayerNormalization", (x, scale, bias), {"axis": -1, "epsilon": found.numbers["epsilon"]}


LAYER_NORM = RewriteRule(_add(_mul(_STANDARD, Value("scale")), Value("bias")), _layer_norm)

# -- group norm ------------------------------------------------------------------------------------------------------

_INSTANCE = Op("Reshape", (Op("InstanceNormalization", (Op("Reshape", (X,)), Value("ones"), Value("zeros")), "norm"),))


def _group_norm(found: Match, graph: Graph, tensors: Tensors) -> Replacement | None:
    """GroupNorm with the scale and bias of the pattern, if they are vectors over the channels; a zero bias is left out."""
    x, norm, result = found.values["x"], found.named["norm"], found.nodes[0].outputs[0]
    shape, groups = graph.shapes[x], graph.shapes[norm.inputs[0]][1]
    ones, zeros = (tensors.get(norm.inputs[i]) for i in (1, 2))
    if ones is None or zeros is None or set(norm.inputs[1:]) & set(graph.parameters) or graph.shapes[result] != shape:
        return None
    plain = bool((ones == 1).all()) and not zeros.any()
    if not plain or len(graph.shapes[norm.inputs[0]]) != 3 or graph.shapes[norm.inputs[0]][0] != shape[0]:
        return None
    operands = [x]
    for name in ("scale", "bias"):
        if name not in found.values:
            continue
        value = found.values[name]
        if name == "bias" and value in graph.constants and not tensors[value].any():
            continue
        vector = _vector(value, 1, len(shape), shape[1], graph)
        if vector is None:
            return None
        operands.append(vector)
    return "GroupNorm", tuple(operands), {"num_groups": groups, "epsilon": norm.float("epsilon", 1e-5)}


GROUP_NORM = (
    RewriteRule(_add(_mul(_INSTANCE, Value("scale")), Value("bias")), _group_norm),
    RewriteRule(_mul(_INSTANCE, Value("scale")), _group_norm),
    RewriteRule(_INSTANCE, _group_norm),
)

RULES = (*ACTIVATIONS, LAYER_NORM, RMS_NORM, *GROUP_NORM)

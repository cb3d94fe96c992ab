"""Whether a network is a classifier, and the value of its answer."""

from dataclasses import dataclass

from tailor_ir.errors import SpaceError
from tailor_ir.graph import Graph, Node
from tailor_ir.ops.elementwise import ACTIVATIONS

SHARES = frozenset(("LogSoftmax", "Sigmoid", "Softmax"))
"""Functions that turn a network's numbers into shares of classes; exits have them, too."""
LAYOUT = frozenset(("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
SUMS = frozenset(
    ("Add", "AveragePool", "BatchNormalization", "Div", "GlobalAveragePool", "Mul", "ReduceMean", "ReduceSum", "Sub")
)
PASSED = LAYOUT | SUMS | {"Concat", "Slice"}
"""Operators that may follow the layer that gives one number for each class."""
LAYERS = frozenset(("Conv", "Gemm", "Linear", "MatMul"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAnswer:
    """The answer (B, K) of a classifier. shares: the functions that it ends with, in order."""

    value: str
    classes: int
    shares: tuple[Node, ...]


def find_answer(graph: Graph) -> ClassAnswer:
    """The answer of a classifier; SpaceError for any other network.

    A classifier gives one value (B, K), K numbers for each sample, computed by layers with weights.
    """
    shapes = [graph.shapes[name] for name in graph.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 2:
        given = ", ".join(str(("B", *shape[1:])).replace("'", "") for shape in shapes)
        raise SpaceError(f"space: exits: the network gives {given}; allowed: one (B, K) for K classes; leave exits out")
    (value,) = graph.outputs
    producers, data = graph.producers(), graph.data_values()
    waiting, seen = [value], {value}
    while waiting:
        node = producers.get(waiting.pop())
        if node is None or node.op not in PASSED | SHARES | ACTIVATIONS | LAYERS:
            found = "its input" if node is None else f"'{node.op}' at '{node.name}'"
            raise SpaceError(
                f"space: exits: the network's answer comes from {found}; allowed: a linear layer; leave exits out"
            )
        if node.op not in LAYERS:
            more = [name for name in node.inputs if name in data and name not in seen]
            waiting += more
            seen.update(more)
    return ClassAnswer(value=value, classes=shapes[0][1], shares=_shares(value, producers))


def _shares(value: str, producers: dict[str, Node]) -> tuple[Node, ...]:
    found: list[Node] = []
    while producers[value].op in SHARES:
        found.insert(0, producers[value])
        value = producers[value].inputs[0]
    return tuple(found)

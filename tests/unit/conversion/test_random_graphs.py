"""Random small graphs keep their outputs, names and types under all rules together, without any rule undone."""

from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from tailor_ir.conversion import convert, examine
from tests.support import examples
from tests.support.conversion.small_models import ints, model, node, number, positive, weights

CHANNELS, SIZE = 4, 5
MOST_NODES = 14
ARRAYS = {
    "kernel": weights(CHANNELS, CHANNELS, 3, 3),
    "thin": weights(CHANNELS, 1, 1, 1),
    "bias": weights(CHANNELS, seed=1),
    "matrix": weights(SIZE, SIZE),
    "row": weights(SIZE, seed=2),
    "channel": positive(CHANNELS, 1, 1, seed=3),
    "one": number(1),
    "zero": number(0),
    "three": number(3),
    "pads": ints(0, 0, 1, 1, 0, 0, 1, 1),
    "nothing": ints(*[0] * 8),
    "same": ints(0, CHANNELS, SIZE, -1),
    "flat": ints(0, CHANNELS * SIZE, SIZE),
    "axis": ints(1),
    **{f"n{i}": positive(CHANNELS, seed=10 + i) for i in range(4)},
}
"""Constants of all graphs."""

Step = Callable[[str, str, str], list[onnx.NodeProto]]
"""Nodes from one or two values of the shape of x to another one, whose name is the third."""


def one(op: str, more: str = "", **attributes: object) -> Step:
    """One node, which reads a value and constants."""
    return lambda a, b, y: [node(op, f"{a} {more}", y, **attributes)]


def two(op: str) -> Step:
    """One node of two values."""
    return lambda a, b, y: [node(op, f"{a} {b}", y)]


def flipped(op: str, constant: str) -> Step:
    """One node whose first operand is a constant."""
    return lambda a, b, y: [node(op, f"{constant} {a}", y)]


def there_and_back(a: str, b: str, y: str) -> list[onnx.NodeProto]:
    """Through two transposes, with a product between them."""
    return [
        node("Transpose", a, f"{y}/t", perm=[0, 2, 3, 1]),
        node("Mul", f"{y}/t one", f"{y}/m"),
        node("Transpose", f"{y}/m", y, perm=[0, 3, 1, 2]),
    ]


def flat_and_back(a: str, b: str, y: str) -> list[onnx.NodeProto]:
    """Through reshapes."""
    return [
        node("Reshape", f"{a} flat", f"{y}/f"),
        node("Unsqueeze", f"{y}/f axis", f"{y}/u"),
        node("Reshape", f"{y}/u same", y),
    ]


def cut_and_joined(a: str, b: str, y: str) -> list[onnx.NodeProto]:
    """Through the two halves of the channels."""
    return [node("Split", a, f"{y}/0 {y}/1", axis=1), node("Concat", f"{y}/1 {y}/0", y, axis=1)]


def padded(a: str, b: str, y: str) -> list[onnx.NodeProto]:
    """Padded, then made small again."""
    return [node("Pad", f"{a} pads", f"{y}/p"), node("Conv", f"{y}/p kernel bias", y)]


STEPS: dict[str, Step] = {
    "conv": one("Conv", "kernel bias", pads=[1, 1, 1, 1]),
    "depthwise": one("Conv", "thin", group=CHANNELS),
    "norm": one("BatchNormalization", "n0 n1 n2 n3"),
    "matmul": one("MatMul", "matrix"),
    "relu": one("Relu"),
    "sigmoid": one("Sigmoid"),
    "identity": one("Identity"),
    "dropout": one("Dropout"),
    "padding of nothing": one("Pad", "nothing"),
    "add row": one("Add", "row"),
    "mul channel": one("Mul", "channel"),
    "div channel": one("Div", "channel"),
    "sub from": flipped("Sub", "three"),
    "add zero": flipped("Add", "zero"),
    "add": two("Add"),
    "mul": two("Mul"),
    "hard sigmoid": one("HardSigmoid", alpha=1 / 6, beta=0.5),
    "pool": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "layer norm": one("LayerNormalization", "row", axis=-1),
    "there and back": there_and_back,
    "flat and back": flat_and_back,
    "cut and joined": cut_and_joined,
    "padded": padded,
}


BATCHES: st.SearchStrategy[int | str] = st.sampled_from([1, 3, "N"])


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Models of one or two outputs, from values of one shape."""
    values, nodes = ["x"], []
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=MOST_NODES))
    for number_, name in enumerate(names):
        a, b = (draw(st.sampled_from(values[-4:])) for _ in range(2))
        values.append(f"v{number_}")
        nodes += STEPS[name](a, b, values[-1])
    outputs = dict.fromkeys([values[-1], draw(st.sampled_from(values[1:]))])
    batch = draw(BATCHES)
    return model(nodes, ARRAYS, shape=(batch, CHANNELS, SIZE, SIZE), outputs=list(outputs))


@settings(max_examples=examples(150), deadline=None)
@given(graphs())
def test_outputs_names_and_types_stay_whatever_the_graph(made: onnx.ModelProto) -> None:
    found = convert(made)
    assert found.undone == ()
    assert found.difference is not None
    assert found.difference <= 1e-5
    assert found.nodes_after <= found.nodes_before
    assert found.model.graph.input == made.graph.input
    assert found.model.graph.output == made.graph.output
    other = examine(made, seed=7)
    assert other.difference(found.model) <= 1e-5


@settings(max_examples=examples(50), deadline=None)
@given(graphs())
def test_a_converted_model_has_nothing_left_to_do(made: onnx.ModelProto) -> None:
    once = convert(made, check=False)
    again = convert(once.model, check=False)
    assert {rule.name for rule in again.rules} <= {"onnxslim"}
    assert again.nodes_after <= once.nodes_after


def test_all_constants_of_the_graphs_are_used() -> None:
    steps = [made for step in STEPS.values() for made in step("x", "x", "y")]
    read = {name for made in steps for name in made.input}
    assert set(ARRAYS) <= read
    assert all(np.isfinite(array).all() for array in ARRAYS.values())

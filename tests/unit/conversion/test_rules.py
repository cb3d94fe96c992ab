"""Each rule of the conversion on a small model that has what it matches."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailor_ir.conversion import convert, trim_kernels
from tailor_ir.conversion.engine import RULES, SLIM
from tailor_ir.conversion.outputs import examine
from tests.support import examples
from tests.support.conversion.small_models import Arrays, ints, model, node, number, operators, positive, weights


@dataclass(frozen=True, slots=True)
class Case:
    """A model of these nodes, and the operators that are left of it."""

    rule: str
    nodes: list[onnx.NodeProto]
    left: list[str]
    arrays: Arrays = field(default_factory=dict)
    shape: tuple[int | str, ...] = (2, 4, 6, 6)
    opset: int = 17
    outputs: tuple[str, ...] = ("y",)


NORM = {f"n{i}": positive(4, seed=i) for i in range(4)}
CONV = {"w": weights(4, 4, 3, 3), "b": weights(4, seed=5)}
MATRIX = {"w": weights(6, 5), "b": weights(5, seed=5)}
GELU = {"root": number(2**0.5), "one": number(1.0), "half": number(0.5)}

CASES = {
    "a constant node": Case(
        "onnxslim",
        [node("Constant", "", "c", value=onnx.numpy_helper.from_array(weights(4, 1, 1))), node("PRelu", "x c", "y")],
        ["PRelu"],
    ),
    "a constant node of one number": Case(
        "onnxslim", [node("Constant", "", "c", value_int=2), node("Gather", "x c", "y", axis=1)], ["Gather"]
    ),
    "an identity": Case("onnxslim", [node("Identity", "x", "i"), node("Relu", "i", "y")], ["Relu"]),
    "an identity that is an output": Case("onnxslim", [node("Relu", "x", "i"), node("Identity", "i", "y")], ["Relu"]),
    "an identity from input to output": Case(
        "onnxslim", [node("Identity", "x", "y"), node("Identity", "x", "z")], ["Identity"] * 2, outputs=("y", "z")
    ),
    "a dropout": Case("onnxslim", [node("Dropout", "x", "i"), node("Relu", "i", "y")], ["Relu"]),
    "a cast to the same type": Case("onnxslim", [node("Cast", "x", "i", to=1), node("Relu", "i", "y")], ["Relu"]),
    "a reshape to the same shape": Case(
        "onnxslim",
        [node("Reshape", "x s", "i"), node("Relu", "i", "y")],
        ["Relu"],
        {"s": ints(0, 4, 6, 6)},
        ("N", 4, 6, 6),
    ),
    "a transpose of nothing": Case(
        "onnxslim", [node("Transpose", "x", "i", perm=[0, 1, 2, 3]), node("Relu", "i", "y")], ["Relu"]
    ),
    "no padding": Case("onnxslim", [node("Pad", "x p", "i"), node("Relu", "i", "y")], ["Relu"], {"p": ints(*[0] * 8)}),
    "a slice of everything": Case(
        "onnxslim",
        [node("Slice", "x s e a", "i"), node("Relu", "i", "y")],
        ["Relu"],
        {"s": ints(0), "e": ints(2**63 - 1), "a": ints(2)},
    ),
    "an expansion to the same shape": Case(
        "onnxslim", [node("Expand", "x s", "i"), node("Relu", "i", "y")], ["Relu"], {"s": ints(1, 1, 6)}
    ),
    "plus zero, times one": Case(
        "onnxslim",
        [node("Add", "x zero", "i"), node("Mul", "one i", "j"), node("Relu", "j", "y")],
        ["Relu"],
        {"zero": np.zeros((4, 1, 1), np.float32), "one": number(1)},
    ),
    "a concatenation of one": Case("onnxslim", [node("Concat", "x", "i", axis=1), node("Relu", "i", "y")], ["Relu"]),
    "two equal nodes": Case(
        "onnxslim",
        [node("Sigmoid", "x", "i"), node("Sigmoid", "x", "j"), node("MatMul", "i j", "y")],
        ["Sigmoid", "MatMul"],
    ),
    "two transposes": Case(
        "onnxslim",
        [node("Transpose", "x", "i", perm=[0, 2, 3, 1]), node("Transpose", "i", "y", perm=[0, 2, 1, 3])],
        ["Transpose"],
    ),
    "two transposes that cancel": Case(
        "onnxslim",
        [
            node("Transpose", "x", "i", perm=[0, 2, 3, 1]),
            node("Transpose", "i", "j", perm=[0, 3, 1, 2]),
            node("Relu", "j", "y"),
        ],
        ["Relu"],
    ),
    "two slices": Case(
        "onnxslim",
        [node("Slice", "x zero end two by", "i"), node("Slice", "i one end three by", "y")],
        ["Slice"],
        {"zero": ints(0), "one": ints(1), "end": ints(2**63 - 1), "two": ints(2), "three": ints(3), "by": ints(2)},
    ),
    "padding before a convolution": Case(
        "onnxslim",
        [node("Pad", "x p", "i"), node("Conv", "i w b", "y")],
        ["Conv"],
        {"p": ints(0, 0, 1, 0, 0, 0, 1, 2), **CONV},
    ),
    "a norm after a convolution": Case(
        "onnxslim",
        [node("Conv", "x w", "i"), node("BatchNormalization", "i n0 n1 n2 n3", "y")],
        ["Conv"],
        {"w": weights(4, 2, 3, 3), **NORM} | {"w": weights(4, 4, 3, 3)},
    ),
    "a norm after a transposed convolution of groups": Case(
        "onnxslim",
        [node("ConvTranspose", "x w b", "i", group=2), node("BatchNormalization", "i n0 n1 n2 n3", "y")],
        ["ConvTranspose"],
        {"w": weights(4, 2, 3, 3), "b": weights(4), **NORM},
    ),
    "scale and shift after a convolution": Case(
        "scales and shifts after",
        [node("Conv", "x w b", "i"), node("Mul", "s i", "j"), node("Sub", "t j", "k"), node("Div", "k two", "y")],
        ["Conv"],
        {**CONV, "s": weights(1, 4, 1, 1), "t": weights(4, 1, 1, seed=3), "two": number(2)},
    ),
    "sums and products behind the transposes after a convolution": Case(
        "scales and shifts after",
        [
            node("Conv", "x w", "i"),
            node("Transpose", "i", "j", perm=[0, 2, 3, 1]),
            node("Sub", "j s", "k"),
            node("Transpose", "k", "l", perm=[0, 3, 2, 1]),
            node("Mul", "l t", "y"),
        ],
        ["Conv", "Transpose", "Transpose"],
        {"w": weights(4, 4, 3, 3), "s": weights(4), "t": weights(4, 1, 1, seed=1)},
    ),
    "a scale of two convolutions": Case(
        "scales and shifts before",
        [
            node("Sub", "s x", "i"),
            node("Conv", "i w", "j"),
            node("Conv", "i v b", "k", group=2),
            node("Mul", "j k", "y"),
        ],
        ["Conv", "Conv", "Mul"],
        {"s": number(2), "w": weights(4, 4, 3, 3), "v": weights(4, 2, 3, 3, seed=1), "b": weights(4, seed=2)},
    ),
    "a norm before a convolution": Case(
        "scales and shifts before",
        [node("BatchNormalization", "x n0 n1 n2 n3", "i"), node("Conv", "i w b", "y", group=2)],
        ["Conv"],
        {"w": weights(4, 2, 3, 3), "b": weights(4), **NORM},
    ),
    "sums and products with constants": Case(
        "constants in a row",
        [
            node("Add", "x a", "i"),
            node("Sub", "i c", "j"),
            node("Div", "j c", "k"),
            node("Mul", "k c", "l"),
            node("Mul", "l a", "y"),
        ],
        ["Add", "Mul"],
        {"a": weights(6), "c": number(3)},
    ),
    "constants of constants": Case(
        "onnxslim",
        [node("Transpose", "w", "v", perm=[1, 0]), node("Neg", "v", "u"), node("MatMul", "x u", "y")],
        ["MatMul"],
        {"w": weights(5, 6)},
    ),
    "a kernel over a single position": Case(
        "unreached kernels", [node("Conv", "x w b", "y", pads=[1] * 4)], ["Conv"], CONV, (2, 4, 1, 1)
    ),
    "a kernel with strides over few positions": Case(
        "unreached kernels", [node("Conv", "x w b", "y", pads=[1] * 4, strides=[2, 2])], ["Conv"], CONV, (2, 4, 2, 1)
    ),
    "a dilated kernel over few positions": Case(
        "unreached kernels", [node("Conv", "x w b", "y", pads=[6] * 4, dilations=[6, 6])], ["Conv"], CONV, (2, 4, 5, 7)
    ),
    "a branch that ends": Case("onnxslim", [node("Relu", "x", "i"), node("Sigmoid", "x", "y")], ["Sigmoid"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_rule_leaves_the_operators_that_it_says_and_equal_outputs(case: Case) -> None:
    made = model(case.nodes, case.arrays, shape=case.shape, opset=case.opset, outputs=case.outputs)
    found = convert(made)
    assert operators(found.model) == case.left
    assert found.undone == ()
    assert found.difference is not None
    assert found.difference <= 1e-5
    assert found.nodes_after == len(case.left)
    if case.left != operators(made):
        assert case.rule in {rule.name for rule in found.rules}
    assert found.model.graph.input == made.graph.input
    assert found.model.graph.output == made.graph.output


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES.values()} == {SLIM, *RULES}


UNTOUCHED = {
    "a kernel whose every position some window has over the map": Case(
        "", [node("Conv", "x w b", "y", pads=[1] * 4)], [], CONV, (2, 4, 2, 2)
    ),
    "a kernel over a map of unknown size": Case(
        "", [node("Conv", "x w b", "y", pads=[1] * 4)], [], CONV, (2, 4, "H", 1)
    ),
    "a half of a gelu before a product": Case(
        "",
        [
            node("Div", "x root", "i"),
            node("Erf", "i", "j"),
            node("Add", "j one", "k"),
            node("Mul", "x k", "l"),
            node("Mul", "l half", "m"),
            node("MatMul", "m w", "y"),
        ],
        [],
        {**GELU, "w": weights(6, 6)},
    ),
    "a shift before a convolution that pads": Case(
        "", [node("Add", "x s", "i"), node("Conv", "i w b", "y", pads=[1] * 4)], [], {"s": number(1), **CONV}
    ),
    "a scale whose result is read elsewhere": Case(
        "", [node("Conv", "x w b", "i"), node("Mul", "i s", "y")], [], {"s": number(2), **CONV}, outputs=("y", "i")
    ),
    "padding with other numbers than zeros": Case(
        "",
        [node("Pad", "x p v", "i"), node("Conv", "i w b", "y")],
        [],
        {"p": ints(0, 0, 1, 0, 0, 0, 1, 2), "v": number(1), **CONV},
    ),
    "zeros before a maximum of any numbers": Case(
        "",
        [node("Pad", "x p", "i"), node("MaxPool", "i", "y", kernel_shape=[3, 3])],
        [],
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "a sum that makes the result larger": Case(
        "", [node("Add", "x z", "y")], [], {"z": np.zeros((2, 1, 1), np.float32)}, (1, 6, 6)
    ),
    "a gelu in an opset without it": Case(
        "",
        [
            node("Div", "x root", "i"),
            node("Erf", "i", "j"),
            node("Add", "j one", "k"),
            node("Mul", "x k", "l"),
            node("Mul", "l half", "y"),
        ],
        [],
        GELU,
    ),
    "a scale of one of two readers": Case(
        "",
        [node("Mul", "x s", "i"), node("MatMul", "i w", "j"), node("MatMul", "j i", "y")],
        [],
        {"s": weights(6), "w": weights(6, 6)},
    ),
    "random numbers": Case(
        "",
        [
            node("RandomNormalLike", "x", "i", seed=1.0),
            node("RandomNormalLike", "x", "j", seed=1.0),
            node("Add", "i j", "k"),
            node("Mul", "k x", "y"),
        ],
        [],
    ),
}


@pytest.mark.parametrize("case", UNTOUCHED.values(), ids=UNTOUCHED)
def test_what_would_change_results_stays(case: Case) -> None:
    made = model(case.nodes, case.arrays, shape=case.shape, opset=case.opset, outputs=case.outputs)
    found = convert(made, check=False)
    assert operators(found.model) == operators(made)


@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.tuples(*[st.integers(1, 4)] * 2),
    kernel=st.tuples(*[st.integers(1, 5)] * 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilations=st.tuples(*[st.integers(1, 2)] * 2),
    groups=st.sampled_from([1, 4]),
)
def test_kernels_without_what_no_input_reaches_compute_the_same(
    size: tuple[int, int],
    kernel: tuple[int, int],
    pads: tuple[int, int, int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    groups: int,
) -> None:
    spans = [size[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) for i in range(2)]
    assume(min(spans) >= 1)
    attributes = {"pads": pads, "strides": strides, "dilations": dilations, "group": groups}
    arrays = {"w": weights(4, 4 // groups, *kernel), "b": weights(4)}
    made = model([node("Conv", "x w b", "y", **attributes)], arrays, shape=(2, 4, *size))
    found = trim_kernels(made)
    assert examine(made, seed=0).difference(found) <= 1e-6
    (left,) = found.graph.node
    shape = next(tuple(t.dims) for t in found.graph.initializer if t.name == left.input[1])
    assert shape[2:] == tuple(
        _reached(*each) for each in zip(size, kernel, pads[:2], pads[2:], strides, dilations, strict=True)
    )


def _reached(size: int, kernel: int, begin: int, end: int, stride: int, dilation: int) -> int:
    """Positions of a kernel between the first and the last that ever lies over the map, by going through all windows."""
    windows = (size + begin + end - dilation * (kernel - 1) - 1) // stride + 1
    seen = {
        tap
        for window in range(windows)
        for tap in range(kernel)
        if 0 <= window * stride + tap * dilation - begin < size
    }
    if not seen:
        return kernel
    first = min(*seen, begin // dilation) if seen else 0
    return max(*seen, kernel - 1 - end // dilation) - first + 1

"""Each rule of the conversion on a small model that has what it matches."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailor_ir.conversion import RULES, UNREACHED_KERNELS, convert
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
        "constant nodes",
        [
            node("Constant", "", "c", value=onnx.numpy_helper.from_array(weights(4, 1, 1))),
            node("PRelu", "x c", "y"),
        ],
        ["PRelu"],
    ),
    "a constant node of one number": Case(
        "constant nodes", [node("Constant", "", "c", value_int=2), node("Gather", "x c", "y", axis=1)], ["Gather"]
    ),
    "an identity": Case("no-ops", [node("Identity", "x", "i"), node("Relu", "i", "y")], ["Relu"]),
    "an identity that is an output": Case("no-ops", [node("Relu", "x", "i"), node("Identity", "i", "y")], ["Relu"]),
    "an identity from input to output": Case(
        "no-ops", [node("Identity", "x", "y"), node("Identity", "x", "z")], ["Identity"] * 2, outputs=("y", "z")
    ),
    "a dropout": Case("no-ops", [node("Dropout", "x", "i"), node("Relu", "i", "y")], ["Relu"]),
    "a cast to the same type": Case("no-ops", [node("Cast", "x", "i", to=1), node("Relu", "i", "y")], ["Relu"]),
    "a reshape to the same shape": Case(
        "no-ops",
        [node("Reshape", "x s", "i"), node("Relu", "i", "y")],
        ["Relu"],
        {"s": ints(0, 4, 6, 6)},
        ("N", 4, 6, 6),
    ),
    "a transpose of nothing": Case(
        "no-ops", [node("Transpose", "x", "i", perm=[0, 1, 2, 3]), node("Relu", "i", "y")], ["Relu"]
    ),
    "no padding": Case("no-ops", [node("Pad", "x p", "i"), node("Relu", "i", "y")], ["Relu"], {"p": ints(*[0] * 8)}),
    "a slice of everything": Case(
        "no-ops",
        [node("Slice", "x s e a", "i"), node("Relu", "i", "y")],
        ["Relu"],
        {"s": ints(0), "e": ints(2**63 - 1), "a": ints(2)},
    ),
    "an expansion to the same shape": Case(
        "no-ops", [node("Expand", "x s", "i"), node("Relu", "i", "y")], ["Relu"], {"s": ints(1, 1, 6)}
    ),
    "plus zero, times one": Case(
        "no-ops",
        [node("Add", "x zero", "i"), node("Mul", "one i", "j"), node("Relu", "j", "y")],
        ["Relu"],
        {"zero": np.zeros((4, 1, 1), np.float32), "one": number(1)},
    ),
    "a resize by one": Case(
        "no-ops", [node("Resize", "x _ s", "i"), node("Relu", "i", "y")], ["Relu"], {"s": np.ones(4, np.float32)}
    ),
    "relu of a softmax": Case("no-ops", [node("Softmax", "x", "i"), node("Relu", "i", "y")], ["Softmax"]),
    "a concatenation of one": Case("no-ops", [node("Concat", "x", "i", axis=1), node("Relu", "i", "y")], ["Relu"]),
    "a split that is joined again": Case(
        "no-ops",
        [node("Split", "x s", "i j", axis=1), node("Concat", "i j", "k", axis=1), node("Relu", "k", "y")],
        ["Relu"],
        {"s": ints(1, 3)},
    ),
    "two equal nodes": Case(
        "equal nodes",
        [node("Sigmoid", "x", "i"), node("Sigmoid", "x", "j"), node("MatMul", "i j", "y")],
        ["Sigmoid", "MatMul"],
    ),
    "two transposes": Case(
        "transposes in a row",
        [node("Transpose", "x", "i", perm=[0, 2, 3, 1]), node("Transpose", "i", "y", perm=[0, 2, 1, 3])],
        ["Transpose"],
    ),
    "two transposes that cancel": Case(
        "transposes in a row",
        [
            node("Transpose", "x", "i", perm=[0, 2, 3, 1]),
            node("Transpose", "i", "j", perm=[0, 3, 1, 2]),
            node("Relu", "j", "y"),
        ],
        ["Relu"],
    ),
    "a transpose of single elements": Case(
        "transposes of single elements",
        [node("Transpose", "x", "i", perm=[0, 2, 3, 1]), node("Reshape", "i s", "y")],
        ["Reshape"],
        {"s": ints(0, 4)},
        ("N", 4, 1, 1),
    ),
    "reshapes of every kind": Case(
        "reshapes in a row",
        [
            node("Unsqueeze", "x a", "i"),
            node("Squeeze", "i a", "j"),
            node("Flatten", "j", "k"),
            node("Reshape", "k s", "y"),
        ],
        ["Reshape"],
        {"a": ints(1), "s": ints(0, 12, 12)},
        ("N", 4, 6, 6),
    ),
    "an axis that is put in behind a transpose": Case(
        "reshapes behind transposes",
        [
            node("Reshape", "x s", "i"),
            node("Transpose", "i", "j", perm=[0, 2, 1]),
            node("Unsqueeze", "j a", "y"),
        ],
        ["Reshape", "Transpose"],
        {"s": ints(0, 4, 36), "a": ints(1)},
        ("N", 4, 6, 6),
    ),
    "two slices": Case(
        "slices in a row",
        [node("Slice", "x zero end two by", "i"), node("Slice", "i one end three by", "y")],
        ["Slice"],
        {"zero": ints(0), "one": ints(1), "end": ints(2**63 - 1), "two": ints(2), "three": ints(3), "by": ints(2)},
    ),
    "slices that are a split": Case(
        "slices to split",
        [
            node("Slice", "x zero two one", "i"),
            node("Slice", "x two four one", "j"),
            node("MatMul", "i j", "y"),
        ],
        ["Split", "MatMul"],
        {"zero": ints(0), "two": ints(2), "four": ints(4), "one": ints(1)},
    ),
    "concatenations": Case(
        "concatenations in a row",
        [node("Relu", "x", "r"), node("Concat", "x r", "i", axis=1), node("Concat", "r i", "y", axis=-3)],
        ["Relu", "Concat"],
    ),
    "a pool and a flatten": Case(
        "kept axes",
        [node("GlobalAveragePool", "x", "i"), node("Flatten", "i", "y")],
        ["ReduceMean"],
        shape=("N", 4, 6, 6),
    ),
    "a mean that puts its axes back": Case(
        "kept axes",
        [node("ReduceMean", "x", "i", axes=[2, 3], keepdims=0), node("Unsqueeze", "i a", "y")],
        ["ReduceMean"],
        {"a": ints(2, 3)},
    ),
    "padding before a convolution": Case(
        "padding",
        [node("Pad", "x p", "i"), node("Conv", "i w b", "y")],
        ["Conv"],
        {"p": ints(0, 0, 1, 0, 0, 0, 1, 2), **CONV},
    ),
    "padding before a mean": Case(
        "padding",
        [node("Pad", "x p", "i"), node("AveragePool", "i", "y", kernel_shape=[3, 3])],
        ["AveragePool"],
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "padding before a maximum": Case(
        "padding",
        [node("Relu", "x", "r"), node("Pad", "r p", "i"), node("MaxPool", "i", "y", kernel_shape=[3, 3])],
        ["Relu", "MaxPool"],
        {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)},
    ),
    "a norm after a convolution": Case(
        "scales and shifts after",
        [node("Conv", "x w", "i"), node("BatchNormalization", "i n0 n1 n2 n3", "y")],
        ["Conv"],
        {"w": weights(4, 2, 3, 3), **NORM} | {"w": weights(4, 4, 3, 3)},
    ),
    "a norm after a transposed convolution of groups": Case(
        "scales and shifts after",
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
    "a scale behind transpose and bias": Case(
        "scales and shifts after",
        [
            node("MatMul", "x w", "i"),
            node("Add", "b i", "j"),
            node("Transpose", "j", "k", perm=[0, 3, 1, 2]),
            node("Mul", "k s", "y"),
        ],
        ["MatMul", "Add", "Transpose"],
        {**MATRIX, "s": weights(5, 1, 1)},
    ),
    "a norm after a product": Case(
        "scales and shifts after",
        [node("MatMul", "x w", "i"), node("BatchNormalization", "i n0 n1 n2 n3", "y")],
        ["Gemm"],
        {"w": weights(6, 4), **NORM},
        ("N", 6),
    ),
    "a scale after a layer norm": Case(
        "scales and shifts after",
        [node("LayerNormalization", "x s", "i", axis=-1), node("Mul", "i t", "j"), node("Add", "j t", "y")],
        ["LayerNormalization"],
        {"s": positive(6), "t": weights(6)},
    ),
    "a norm before a convolution": Case(
        "scales and shifts before",
        [node("BatchNormalization", "x n0 n1 n2 n3", "i"), node("Conv", "i w b", "y", group=2)],
        ["Conv"],
        {"w": weights(4, 2, 3, 3), "b": weights(4), **NORM},
    ),
    "a scale before products": Case(
        "scales and shifts before",
        [node("Mul", "x s", "i"), node("MatMul", "i w", "j"), node("MatMul", "i v", "k"), node("MatMul", "j k", "y")],
        ["MatMul"] * 3,
        {"s": weights(6), "w": weights(6, 6), "v": weights(6, 6, seed=1)},
    ),
    "a shift before a Gemm": Case(
        "scales and shifts before",
        [node("Add", "x s", "i"), node("Gemm", "i w b", "y", transB=1, alpha=0.5, beta=2.0)],
        ["Gemm"],
        {"s": weights(6), "w": weights(5, 6), "b": weights(5)},
        ("N", 6),
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
    "a single number behind reshapes": Case(
        "scales and shifts after",
        [
            node("Conv", "x w b", "i"),
            node("Reshape", "i s", "j"),
            node("Transpose", "j", "k", perm=[0, 2, 1]),
            node("Mul", "k three", "y"),
        ],
        ["Conv", "Reshape", "Transpose"],
        {**CONV, "s": ints(0, 4, 16), "three": number(3)},
    ),
    "an attention whose operands are scaled": Case(
        "scales of operands",
        [
            node("Mul", "x three", "q"),
            node("Div", "x three", "i"),
            node("Transpose", "i", "k", perm=[0, 1, 3, 2]),
            node("Mul", "k three", "l"),
            node("MatMul", "q l", "y"),
        ],
        ["Mul", "Transpose", "MatMul"],
        {"three": number(3)},
    ),
    "an attention in which one operand is scaled": Case(
        "scales of operands",
        [
            node("Mul", "x three", "q"),
            node("MatMul", "x w", "i"),
            node("Add", "i b", "j"),
            node("Transpose", "j", "k", perm=[0, 1, 3, 2]),
            node("MatMul", "q k", "y"),
        ],
        ["MatMul", "Add", "Transpose", "MatMul"],
        {"w": weights(6, 6), "b": weights(6), "three": number(3)},
    ),
    "an attention in which a norm can be scaled": Case(
        "scales of operands",
        [
            node("Div", "x three", "q"),
            node("LayerNormalization", "x w b", "j", axis=-1),
            node("Transpose", "j", "k", perm=[0, 1, 3, 2]),
            node("MatMul", "q k", "y"),
        ],
        ["LayerNormalization", "Transpose", "MatMul"],
        {"w": weights(6), "b": weights(6), "three": number(3)},
    ),
    "a product and a sum": Case(
        "biases",
        [node("Relu", "x", "r"), node("MatMul", "x w", "i"), node("Add", "i b", "y")],
        ["Gemm"],
        {"w": weights(6, 6), "b": weights(3, 6)},
        (3, 6),
    ),
    "a transpose before a product": Case(
        "transposed operands",
        [node("Transpose", "x", "i", perm=[1, 0]), node("MatMul", "i w", "y")],
        ["Gemm"],
        {"w": weights(3, 5)},
        (3, 6),
    ),
    "a layer norm in parts": Case(
        "norms",
        [
            node("ReduceMean", "x", "m", axes=[-1]),
            node("Sub", "x m", "d"),
            node("Pow", "d two", "p"),
            node("ReduceMean", "p", "v", axes=[3]),
            node("Add", "v e", "ve"),
            node("Sqrt", "ve", "r"),
            node("Div", "d r", "n"),
            node("Mul", "n s", "ns"),
            node("Add", "ns s", "y"),
        ],
        ["LayerNormalization"],
        {"two": number(2), "e": number(1e-3), "s": weights(6)},
    ),
    "a hard sigmoid": Case(
        "hard sigmoids",
        [node("Add", "x three", "i"), node("Clip", "i zero six", "j"), node("Div", "j six", "y")],
        ["HardSigmoid"],
        {"zero": number(0), "three": number(3), "six": number(6)},
    ),
    "a hard swish": Case(
        "gates",
        [
            node("Add", "x three", "i"),
            node("Clip", "i zero six", "j"),
            node("Mul", "x j", "k"),
            node("Div", "k six", "y"),
        ],
        ["HardSwish"],
        {"zero": number(0), "three": number(3), "six": number(6)},
    ),
    "a hard swish of a hard sigmoid": Case(
        "gates", [node("HardSigmoid", "x", "i", alpha=1 / 6), node("Mul", "i x", "y")], ["HardSwish"]
    ),
    "a mish": Case(
        "gates", [node("Softplus", "x", "i"), node("Tanh", "i", "j"), node("Mul", "x j", "y")], ["Mish"], opset=18
    ),
    "a gelu": Case(
        "gates",
        [
            node("Div", "x root", "i"),
            node("Erf", "i", "j"),
            node("Add", "j one", "k"),
            node("Mul", "x k", "l"),
            node("Mul", "l half", "y"),
        ],
        ["Gelu"],
        GELU,
        opset=20,
    ),
    "a gelu before a product": Case(
        "gates",
        [
            node("Div", "x root", "i"),
            node("Erf", "i", "j"),
            node("Add", "one j", "k"),
            node("Mul", "x half", "l"),
            node("Mul", "l k", "m"),
            node("MatMul", "m w", "y"),
        ],
        ["Gelu", "MatMul"],
        {**GELU, "w": weights(6, 6)},
        opset=20,
    ),
    "a relu and a clip": Case(
        "clips",
        [node("Relu", "x", "i"), node("Clip", "i zero six", "y")],
        ["Clip"],
        {"zero": number(0), "six": number(6)},
    ),
    "a shape of which parts are known": Case(
        "known sizes",
        [
            node("Shape", "x", "s"),
            node("Gather", "s one", "c"),
            node("Gather", "s zero", "n"),
            node("Concat", "n c minus", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        ["Reshape"],
        {"zero": ints(0), "one": ints(1), "minus": ints(-1)},
        ("N", 4, 6, 6),
    ),
    "constants of constants": Case(
        "constants",
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
    "a branch that ends": Case("unread fused nodes", [node("Relu", "x", "i"), node("Sigmoid", "x", "y")], ["Sigmoid"]),
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
    tried = {case.rule for case in CASES.values()}
    after_fusion = {"equal constants", "computed targets", "unread nodes"}
    assert {rule.name for rule in RULES} == tried | after_fusion


def test_names_of_rules_are_different_and_stages_are_in_order() -> None:
    names, stages = [rule.name for rule in RULES], [rule.stage for rule in RULES]
    assert len(set(names)) == len(names)
    assert stages == sorted(stages, key=("fusion", "constants").index)


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
    found = convert(made, rules=[UNREACHED_KERNELS])
    assert found.difference is not None
    assert found.difference <= 1e-6
    (left,) = found.model.graph.node
    shape = next(tuple(t.dims) for t in found.model.graph.initializer if t.name == left.input[1])
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

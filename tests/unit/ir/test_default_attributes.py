"""Operators of files without their optional attributes and inputs: ONNX's defaults hold, by the file's opset."""

from typing import Any

import pytest

from tests.fuzzing.checks import examine
from tests.fuzzing.networks import Network, Step

IMAGE, ROWS = {"x": ("float32", ("N", 3, 6, 5))}, {"x": ("float32", ("N", 4, 3))}
KERNEL = {"w": (8, 3, 3, 3)}
CONVOLUTION = Step("Conv", "x w", "u", {"pads": [1, 1, 1, 1]})
FLOAT = 1


def of_image(*steps: Step, opset: int = 17, weights: dict[str, Any] | None = None, **constants: Any) -> Network:
    """Steps from a map u (N, 8, 6, 5) to y."""
    steps, weights = (CONVOLUTION, *steps), KERNEL | (weights or {})
    return Network(inputs=IMAGE, steps=steps, outputs=("y",), weights=weights, constants=constants, opset=opset)


def of_map(op: str, inputs: str = "u", outputs: str = "y", **more: Any) -> Network:
    """One operator that reads the map u. more: attributes that it has to have, opset, weights and constants."""
    return of_image(Step(op, inputs, outputs, more.pop("attributes", {})), **more)


def of_weight(op: str, inputs: str = "b", **more: Any) -> Network:
    """An operator whose default is the first axis, or all, reads a weight b (6, 5). The map u is added to its result."""
    weights = {"b": (6, 5), **more.pop("weights", {})}
    step = Step(op, inputs, "r", more.pop("attributes", {}))
    return of_image(step, Step("Cast", "r", "c", {"to": FLOAT}), Step("Add", "u c", "y"), weights=weights, **more)


def scaled_by_a_normed_map(opset: int) -> Network:
    """A weight, since MeanVarianceNormalization without axes mixes samples."""
    normed = Step("MeanVarianceNormalization", "b", "r")
    return of_image(normed, Step("Mul", "u r", "y"), opset=opset, weights={"b": (1, 8, 6, 5)})


def of_rows(*steps: Step, opset: int = 17, **weights: tuple[int, ...]) -> Network:
    """Steps from x (N, 4, 3) to y."""
    return Network(inputs=ROWS, steps=steps, outputs=("y",), weights=weights, opset=opset)


def recurrent(op: str, gates: int, opset: int) -> Network:
    turned, layer = Step("Transpose", "x", "s", {"perm": [1, 0, 2]}), Step(op, "s w wr b", "y", {"hidden_size": 6})
    return of_rows(turned, layer, opset=opset, w=(1, 6 * gates, 3), wr=(1, 6 * gates, 6), b=(1, 12 * gates))


def reduction(op: str, opset: int) -> Network:
    """A reduction over stated axes."""
    if opset < (13 if op == "ReduceSum" else 18):
        return of_map(op, opset=opset, attributes={"axes": [1, 2]})
    return of_map(op, "u axes", opset=opset, axes=[1, 2])


def halves(opset: int) -> Network:
    split = Step("Split", "b", "p q", {"num_outputs": 2} if opset > 17 else {})
    return of_image(split, Step("Mul", "u p", "m"), Step("Sub", "m q", "y"), opset=opset, weights={"b": (12, 5)})


def products(opset: int) -> Network:
    steps = (Step("Flatten", "x", "f"), Step("Gemm", "f w b", "v"), Step("Gemm", "v wv b", "y"))
    return of_rows(*steps, opset=opset, w=(12, 6), wv=(6, 6), b=(6,))


def sampled(opset: int) -> Network:
    grid = Step("Conv", "x wg", "g"), Step("Transpose", "g", "t", {"perm": [0, 2, 3, 1]})
    return of_image(*grid, Step("GridSample", "u t", "y"), opset=opset, weights={"wg": (2, 3, 3, 3)})


def moved(opset: int) -> Network:
    """An image at the positions of an affine map (N, 2, 3) that follows from it."""
    steps = (
        Step("ReduceMean", "x sides", "m", {"keepdims": 0}),
        Step("MatMul", "m w", "v"),
        Step("Reshape", "v matrix", "t"),
        Step("Shape", "x", "sizes"),
        Step("AffineGrid", "t sizes", "g"),
        Step("GridSample", "x g", "y"),
    )
    constants = {"sides": [2, 3], "matrix": [-1, 2, 3]}
    return Network(inputs=IMAGE, steps=steps, outputs=("y",), weights={"w": (3, 6)}, constants=constants, opset=opset)


def turned(opset: int) -> Network:
    inputs = {"x": ("float32", ("N", 2, 4, 6)), "p": ("int64", ("N", 4))}
    step, weights = Step("RotaryEmbedding", "x bc bs p", "y"), {"bc": (16, 3), "bs": (16, 3)}
    return Network(inputs=inputs, steps=(step,), outputs=("y",), weights=weights, opset=opset)


def spectrum(opset: int) -> Network:
    signal = {"x": ("float32", ("N", 4, 6, 1))}
    return Network(inputs=signal, steps=(Step("DFT", "x", "f"), Step("Tanh", "f", "y")), outputs=("y",), opset=opset)


REDUCTIONS = (
    "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSumExp",
)  # fmt: skip
UNARY = {
    "Celu": 12, "Clip": 17, "Dropout": 17, "Elu": 17, "Flatten": 17, "Gelu": 20, "GlobalLpPool": 17, "HardSigmoid": 17,
    "HardSwish": 17, "LeakyRelu": 17, "LpNormalization": 17, "Selu": 17, "Shrink": 17, "Swish": 24, "ThresholdedRelu": 17,
    "Transpose": 17, "Trilu": 17,
}  # fmt: skip
"""Operators that read one map, and an opset that has them."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
PADS, SCALES, PLACES = [0, 0, 1, 0, 0, 0, 0, 2], [1.0, 1.0, 2.0, 1.5], [[1, 0, 2, 4, 3]]
NORM, CHANNELS = {"g": (5,), "b": (5,)}, {"g": (8,), "b": (8,)}
CASES: dict[str, Network] = {
    **{op: of_map(op, opset=opset) for op, opset in UNARY.items()},
    **{f"{op}-{opset}": of_map(op, opset=opset) for op in ("Softmax", "LogSoftmax") for opset in (11, 13)},
    **{f"{op}-{opset}": reduction(op, opset) for op in REDUCTIONS for opset in (11, 17, 18)},
    **{f"{op}-{opset} of everything": of_weight(op, opset=opset) for op in REDUCTIONS for opset in (11, 17, 18)},
    **{f"{op}-{opset}": recurrent(op, gates, opset) for op, gates in GATES.items() for opset in (11, 14)},
    **{f"Gemm-{opset}": products(opset) for opset in (11, 17)},
    **{f"Split-{opset}": halves(opset) for opset in (11, 17, 18)},
    **{f"GridSample-{opset}": sampled(opset) for opset in (16, 20)},
    **{f"DFT-{opset}": spectrum(opset) for opset in (17, 20)},
    "AffineGrid": moved(opset=20),
    "ArgMax": of_weight("ArgMax"),
    "ArgMin": of_weight("ArgMin"),
    "Attention": of_rows(
        Step("MatMul", "x w", "q"),
        Step("Attention", "q q q", "y", {"q_num_heads": 2, "kv_num_heads": 2}),
        opset=23,
        w=(3, 8),
    ),
    "AveragePool": of_map("AveragePool", attributes={"kernel_shape": [2, 3]}),
    "AveragePool with padding": of_map("AveragePool", attributes={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "AveragePool-19": of_map("AveragePool", opset=19, attributes={"kernel_shape": [2, 3]}),
    "BatchNormalization": of_map("BatchNormalization", "u g b b g", weights=CHANNELS),
    "BatchNormalization-9": of_map("BatchNormalization", "u g b b g", opset=9, weights=CHANNELS),
    "Clip from above": of_map("Clip", "u _ high", high=0.1),
    "Clip from below": of_map("Clip", "u low", low=-0.1),
    "Clip-6": of_map("Clip", opset=6),
    "Conv": of_map("Conv", "u wv", weights={"wv": (4, 8, 3, 2)}),
    "ConvTranspose": of_map("ConvTranspose", "u wv", weights={"wv": (8, 4, 3, 2)}),
    "CumSum": of_map("CumSum", "u axis", axis=2),
    "DeformConv": of_image(
        Step("Conv", "x wo", "o"),
        Step("DeformConv", "u wv o", "y"),
        opset=19,
        weights={"wo": (18, 3, 3, 3), "wv": (4, 8, 3, 3)},
    ),
    "DepthToSpace": of_map("DepthToSpace", attributes={"blocksize": 2}),
    "Gather": of_weight("Gather", "b places", places=[1]),
    "Gather one": of_weight("Gather", "b place", place=1),
    "GatherElements": of_weight("GatherElements", "b places", places=PLACES),
    "GroupNormalization-18": of_map(
        "GroupNormalization", "u g b", opset=18, weights={"g": (2,), "b": (2,)}, attributes={"num_groups": 2}
    ),
    "GroupNormalization-21": of_map(
        "GroupNormalization", "u g b", opset=21, weights=CHANNELS, attributes={"num_groups": 2}
    ),
    "InstanceNormalization": of_map("InstanceNormalization", "u g b", weights=CHANNELS),
    "LayerNormalization": of_map("LayerNormalization", "u g", weights={"g": (5,)}),
    "LayerNormalization with a bias": of_map("LayerNormalization", "u g b", weights=NORM),
    "MaxPool": of_map("MaxPool", attributes={"kernel_shape": [2, 3]}),
    "MaxUnpool": of_image(
        Step("MaxPool", "u", "p places", {"kernel_shape": [2, 2]}),
        Step("MaxUnpool", "p places", "y", {"kernel_shape": [2, 2]}),
    ),
    "MeanVarianceNormalization": scaled_by_a_normed_map(17),
    "MeanVarianceNormalization-9": scaled_by_a_normed_map(9),
    "Mod": of_weight("Mod", "whole two", whole=[-5, 5, 3, -1, 0], two=[3]),
    "Mod of computed numbers": of_image(
        Step("ArgMax", "u", "i", {"axis": 1}), Step("Sub", "i four", "d"), Step("Mod", "d three", "y"), four=4, three=3
    ),
    "PRelu": of_map("PRelu", "u b", weights={"b": (8, 1, 1)}),
    "Pad": of_map("Pad", "u pads", pads=PADS),
    "Pad-10": of_map("Pad", opset=10, attributes={"pads": PADS}),
    "RMSNormalization": of_map("RMSNormalization", "u g", opset=23, weights={"g": (5,)}),
    "ReduceLogSum": of_weight("ReduceLogSum", "g", weights={"g": (6, 5)}),
    "Reshape": of_map("Reshape", "u sizes", sizes=[0, -1]),
    "Resize": of_map("Resize", "u _ scales", scales=SCALES),
    "Resize to a size": of_map("Resize", "u _ _ sizes", opset=18, sizes=[8, 9], attributes={"axes": [2, 3]}),
    "Resize-10": of_map("Resize", "u scales", opset=10, scales=SCALES),
    "RotaryEmbedding": turned(opset=23),
    "ScatterElements": of_image(
        Step("ScatterElements", "b places new", "r"),
        Step("Add", "u r", "y"),
        weights={"b": (6, 5)},
        places=PLACES,
        new=[[0.1] * 5],
    ),
    "Slice": of_weight("Slice", "b one two", one=[1], two=[2]),
    "Slice-9": of_weight("Slice", opset=9, attributes={"starts": [1], "ends": [2]}),
    "SpaceToDepth": of_image(
        Step("Slice", "u zero four three", "v"),
        Step("SpaceToDepth", "v", "y", {"blocksize": 2}),
        zero=[0],
        four=[4],
        three=[3],
    ),
    "Squeeze": of_weight("Squeeze", "g", weights={"g": (1, 5)}),
    "TopK": of_map("TopK", "u two", "y places", two=[2]),
    "TopK-10": of_map("TopK", "u two", "y places", opset=10, two=[2]),
    "Trilu from a diagonal": of_map("Trilu", "u one", one=1),
    "Upsample": of_map("Upsample", "u scales", opset=9, scales=[1.0, 1.0, 2.0, 2.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_without_optional_attributes(name: str) -> None:
    """The batches are of 1 and 3 samples."""
    outcome = examine(CASES[name])
    assert not outcome.faults, outcome.faults
    assert not outcome.refused

"""Operators of ONNX files that are read as other operators: attention, spectra, functions that ONNX defines by others."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tailor_ir
from tests.unit.ir.forms import SIDE, WIDTH, array, check_file, file_around, is_elastic, model_of, node, operators_of

STEPS, HEADS = 6, 4


def tokens(
    nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], width: int = WIDTH, opset: int = 23
) -> onnx.ModelProto:
    """Rows (B, 6, 16) through linear maps to q, k and v, through `nodes` from them to `t`, and through a linear map to y."""
    frame = [
        helper.make_node("MatMul", ["x", "embed"], ["e"], "embed"),
        *(helper.make_node("MatMul", ["e", f"w{name}"], [name], f"to {name}") for name in "qkv"),
        *nodes,
        helper.make_node("MatMul", ["t", "wo"], ["o"], "out"),
        helper.make_node("Add", ["o", "e"], ["r"]),
        helper.make_node("Transpose", ["r"], ["r2"], perm=[0, 2, 1]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    weights = {
        "embed": array(16, WIDTH),
        "wq": array(WIDTH, WIDTH),
        "wk": array(WIDTH, width),
        "wv": array(WIDTH, width, seed=1),
    }
    return model_of(
        frame, {**weights, "wo": array(WIDTH, WIDTH), "head": array(5, WIDTH), **tensors}, (1, STEPS, 16), opset
    )


MASKS = {
    "no mask": {},
    "mask of numbers": {"mask": array(STEPS, STEPS, scale=2)},
    "mask of truths": {"mask": np.tri(STEPS, dtype=bool)},
    "mask for each head": {"mask": array(1, HEADS, STEPS, STEPS)},
}


@pytest.mark.parametrize("kv_heads", [HEADS, HEADS // 2, 1])
@pytest.mark.parametrize(
    ("mask", "settings"),
    [("no mask", {"is_causal": 1, "softcap": 3.0}), *((name, {"scale": 0.2}) for name in MASKS if name != "no mask")],
)
def test_attention_of_opset_23(kv_heads: int, mask: str, settings: dict[str, Any], tmp_path: Path) -> None:
    operands = ["q", "k", "v", *MASKS[mask]]
    attention = helper.make_node(
        "Attention", operands, ["t"], "att", q_num_heads=HEADS, kv_num_heads=kv_heads, **settings
    )
    net = check_file(tokens([attention], MASKS[mask], WIDTH * kv_heads // HEADS), tmp_path)
    assert {"MatMul", "Softmax"} <= operators_of(net)


def test_heads_of_attention_are_elastic(tmp_path: Path) -> None:
    attention = helper.make_node("Attention", ["q", "k", "v"], ["t"], "att", q_num_heads=HEADS, kv_num_heads=HEADS)
    net = check_file(tokens([attention], {}), tmp_path)
    assert is_elastic(net, "heads"), net.space.variables


def test_attention_over_axes_of_its_own(tmp_path: Path) -> None:
    """(B, heads, N, size) as four axes, here rows and columns of an image."""
    attention = helper.make_node("Attention", ["a", "a", "a"], ["b"], "att")
    check_file(file_around([attention], {}, opset=23), tmp_path)


FORMS: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray], int]] = {
    "rms norm": ([node("RMSNormalization", "s", axis=-1)], {"s": array(SIDE)}, 23),
    "rms norm of two axes": ([node("RMSNormalization", "s", axis=-2)], {"s": array(SIDE, SIDE)}, 23),
    "cast like": (
        [helper.make_node("Cast", ["a"], ["h"], to=7), helper.make_node("CastLike", ["h", "s"], ["b"])],
        {"s": array(2)},
        17,
    ),
    "mean and variance": (
        [
            helper.make_node("MeanVarianceNormalization", ["a"], ["m"], axes=[2, 3]),
            helper.make_node("Relu", ["m"], ["b"]),
        ],
        {},
        17,
    ),
    "spectrum": (
        [
            helper.make_node("Unsqueeze", ["a", "last"], ["u"]),
            helper.make_node("DFT", ["u"], ["d"], axis=2, onesided=1),
            helper.make_node("ReduceSumSquare", ["d"], ["b"], axes=[-1], keepdims=0),
        ],
        {"last": np.asarray([-1])},
        17,
    ),
    "spectrum of opset 20, there and back": (
        [
            helper.make_node("Unsqueeze", ["a", "last"], ["u"]),
            helper.make_node("DFT", ["u", "points", "axis"], ["d"], onesided=1),
            helper.make_node("DFT", ["d", "points", "axis"], ["i"], onesided=1, inverse=1),
            helper.make_node("Squeeze", ["i", "last"], ["b"]),
        ],
        {"last": np.asarray([-1]), "points": np.asarray(12), "axis": np.asarray(-2)},
        20,
    ),
    "short-time spectrum": (
        [
            helper.make_node("Flatten", ["a"], ["l"]),
            helper.make_node("STFT", ["l", "step", "window"], ["d"]),
            helper.make_node("ReduceL2", ["d"], ["m"], axes=[-1], keepdims=0),
            helper.make_node("ReduceMean", ["m"], ["n"], axes=[1, 2], keepdims=1),
            helper.make_node("Unsqueeze", ["n", "last"], ["n4"]),
            helper.make_node("Mul", ["a", "n4"], ["b"]),
        ],
        {"last": np.asarray([-1]), "step": np.asarray(16), "window": np.hanning(32).astype(np.float32)},
        17,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_files(name: str, tmp_path: Path) -> None:
    nodes, tensors, opset = FORMS[name]
    check_file(file_around(nodes, tensors, opset=opset), tmp_path)


def test_attention_with_earlier_keys_and_values(tmp_path: Path) -> None:
    """Here the same ones twice."""
    past = [helper.make_node("Attention", ["q4", "k4", "v4", "", "k4", "v4"], ["t4", "ks", "vs"], "att")]
    split = [
        helper.make_node(op, [before, *shape], [after], f"{op} {after}", **settings)
        for name in "qkv"
        for op, before, shape, after, settings in (
            ("Reshape", name, ["apart"], f"{name}3", {}),
            ("Transpose", f"{name}3", [], f"{name}4", {"perm": [0, 2, 1, 3]}),
        )
    ]
    join = [
        helper.make_node("Transpose", ["t4"], ["t3"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t3", "joined"], ["t"]),
    ]
    shapes = {"apart": np.asarray([0, STEPS, HEADS, WIDTH // HEADS]), "joined": np.asarray([0, STEPS, WIDTH])}
    check_file(tokens([*split, *past, *join], shapes), tmp_path)


def test_a_signal_with_a_computed_length_is_refused() -> None:
    nodes = [
        helper.make_node("Flatten", ["a"], ["l"]),
        helper.make_node("ReduceMax", ["a"], ["w4"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Cast", ["w4"], ["w5"], to=7),
        helper.make_node("STFT", ["l", "step", "", "w5"], ["b"], "spectrum"),
    ]
    with pytest.raises(tailor_ir.ImportFailed, match="operator 'STFT' at 'spectrum': computed lengths"):
        tailor_ir.compile(file_around(nodes, {"step": np.asarray(4)}))

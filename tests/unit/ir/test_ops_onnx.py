"""Operators and forms that torch does not export: ONNX files, against onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tailor_ir
from tests.support.ir.invariants import EXPORT_TOLERANCE, check_subnet, difference

CHANNELS = 16
Arrays = dict[str, np.ndarray]


def array(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def network(
    nodes: Sequence[onnx.NodeProto], arrays: Arrays, shape: tuple[int, ...] = (1, 3, 16, 16), opset: int = 17
) -> onnx.ModelProto:
    """x through a 3×3 convolution to `a`, through `nodes` from `a` to `b`, channels joined to 16 again, and pooled to y."""
    frame = [
        helper.make_node("Conv", ["x", "stem"], ["s"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["s"], ["a"]),
        *nodes,
        helper.make_node("GlobalAveragePool", ["b"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "head"], ["y"], transB=1),
    ]
    channels = arrays.pop("head_of", np.asarray(CHANNELS)).item()
    arrays |= {"stem": array(CHANNELS, 3, 3, 3, seed=1), "head": array(5, channels, seed=2)}
    graph = helper.make_graph(
        frame,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 5])],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check(model: onnx.ModelProto, folder: Path) -> tailor_ir.SuperNet:
    """The largest SubNet is the file's network, and three random ones agree in all forms."""
    onnx.save(model, folder / "network.onnx")
    net = tailor_ir.compile(folder / "network.onnx")
    net.elastic.eval().activate(net.max_config)
    x = torch.randn(net.input_shape(net.max_config), generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(folder / "network.onnx", providers=["CPUExecutionProvider"])
    expected = torch.from_numpy(session.run(None, {"x": x.numpy()})[0])
    with torch.no_grad():
        assert difference(expected, net.elastic(x)) <= EXPORT_TOLERANCE
    rng = np.random.default_rng(0)
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(3))]:
        check_subnet(net, config, folder, x)
    return net


def node(op: str, *operands: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["a", *operands], ["b"], op, **attributes)


def with_channels(count: int, **arrays: np.ndarray) -> Arrays:
    """The number of channels that reach the head, and tensors."""
    return {"head_of": np.asarray(count), **arrays}


FORMS: dict[str, tuple[list[onnx.NodeProto], Arrays]] = {
    "thresholded relu": ([node("ThresholdedRelu", alpha=0.3)], {}),
    "shrink": ([node("Shrink", lambd=0.2, bias=0.1)], {}),
    "celu": ([node("Celu", alpha=0.5)], {}),
    "hard sigmoid": ([node("HardSigmoid", alpha=0.3, beta=0.4)], {}),
    "selu": ([node("Selu", alpha=1.2, gamma=0.9)], {}),
    "clip from below": ([node("Clip", "low")], {"low": np.asarray(0.1, np.float32)}),
    "prelu": ([node("PRelu", "slope")], {"slope": array(CHANNELS, 1, 1)}),
    "largest of three": ([node("Max", "c", "d")], {"c": array(CHANNELS, 1, 1), "d": array(1, CHANNELS, 1, 1, seed=3)}),
    "mean of two": ([node("Mean", "c")], {"c": array(CHANNELS, 1, 1)}),
    "sum of two": ([node("Sum", "c")], {"c": array(CHANNELS, 1, 1)}),
    "depth to space": ([node("DepthToSpace", blocksize=2)], with_channels(4)),
    "depth to space by column": ([node("DepthToSpace", blocksize=2, mode="CRD")], with_channels(4)),
    "space to depth": ([node("SpaceToDepth", blocksize=2)], with_channels(64)),
    "norm of positions": ([node("GlobalLpPool", p=2)], {}),
    "unit length": ([node("LpNormalization", axis=1, p=2)], {}),
    "same padding": (
        [node("Conv", "w", auto_pad="SAME_UPPER", strides=[2, 2])],
        {"w": array(CHANNELS, CHANNELS, 3, 3)},
    ),
    "same padding at the begin": (
        [node("Conv", "w", auto_pad="SAME_LOWER", strides=[2, 2])],
        {"w": array(CHANNELS, CHANNELS, 4, 4)},
    ),
    "padding on one side": ([node("Conv", "w", pads=[0, 1, 2, 1])], {"w": array(CHANNELS, CHANNELS, 3, 3)}),
    "maximum with padding on one side": ([node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])], {}),
    "average with padding on one side": (
        [node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1], count_include_pad=0)],
        {},
    ),
    "transposed with padding on one side": (
        [node("ConvTranspose", "w", strides=[2, 2], pads=[0, 0, 1, 1])],
        {"w": array(CHANNELS, CHANNELS, 3, 3)},
    ),
    "resize by a fraction": (
        [node("Resize", "", "factors", mode="linear")],
        {"factors": np.asarray([1, 1, 1.3, 1.7], np.float32)},
    ),
    "resize to a size": ([node("Resize", "", "", "size", mode="linear")], {"size": ints(1, CHANNELS, 24, 40)}),
    "tile": ([node("Tile", "repeats")], with_channels(2 * CHANNELS, repeats=ints(1, 2, 1, 1))),
    "channels of zero": ([node("Pad", "pads")], with_channels(CHANNELS + 8, pads=ints(0, 0, 0, 0, 0, 8, 0, 0))),
    "sum over rows": ([node("ReduceSum", "axes")], {"axes": ints(2)}),
    "logarithm of a sum": (
        [helper.make_node("Exp", ["a"], ["e"]), helper.make_node("ReduceLogSum", ["e"], ["b"], axes=[2])],
        {},
    ),
    "sum of squares": ([node("ReduceSumSquare", axes=[3])], {}),
    "highest channel": (
        [
            helper.make_node("ArgMax", ["a"], ["i"], axis=1),
            helper.make_node("Cast", ["i"], ["g"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["a", "g"], ["b"]),
        ],
        {},
    ),
    "standardised by the batch": (
        [
            helper.make_node("Reshape", ["w", "flat"], ["wf"]),
            helper.make_node("BatchNormalization", ["wf", "one", "no", "no", "one"], ["ws", "m", "v"], training_mode=1),
            helper.make_node("Reshape", ["ws", "full"], ["wn"]),
            node("Conv", "wn", pads=[1, 1, 1, 1]),
        ],
        {
            "w": array(CHANNELS, CHANNELS, 3, 3),
            "one": np.ones(CHANNELS, np.float32),
            "no": np.zeros(CHANNELS, np.float32),
            "flat": ints(1, CHANNELS, -1),
            "full": ints(CHANNELS, CHANNELS, 3, 3),
        },
    ),
    "matrices in other forms": (
        [
            helper.make_node("GlobalMaxPool", ["a"], ["q"]),
            helper.make_node("Flatten", ["q"], ["r"]),
            helper.make_node("Gemm", ["r", "w", "c"], ["g"], alpha=0.5, beta=2.0),
            helper.make_node("Reshape", ["g", "shape"], ["k"]),
            helper.make_node("Mul", ["a", "k"], ["b"]),
        ],
        {"w": array(CHANNELS, CHANNELS), "c": array(CHANNELS), "shape": ints(1, CHANNELS, 1, 1)},
    ),
    "hard swish of a hard sigmoid": (
        [
            helper.make_node("HardSigmoid", ["a"], ["h"], alpha=1 / 6, beta=0.5),
            helper.make_node("Mul", ["a", "h"], ["b"]),
        ],
        {},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_onnx(name: str, tmp_path: Path) -> None:
    nodes, arrays = FORMS[name]
    check(network(nodes, dict(arrays)), tmp_path)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "opset"),
    [
        ("Gelu", (), {"approximate": "tanh"}, 20),
        ("Mish", (), {}, 18),
        ("GroupNormalization", ("scale", "bias"), {"num_groups": 4}, 21),
        ("ReduceMax", ("axes",), {}, 18),
    ],
)
def test_operators_of_later_opsets(
    op: str, operands: tuple[str, ...], attributes: dict[str, Any], opset: int, tmp_path: Path
) -> None:
    arrays = {"scale": array(CHANNELS), "bias": array(CHANNELS, seed=4), "axes": ints(2)}
    arrays = {name: value for name, value in arrays.items() if name in operands}
    check(network([node(op, *operands, **attributes)], arrays, opset=opset), tmp_path)


@pytest.mark.parametrize(
    ("nodes", "arrays", "message"),
    [
        (
            [node("Resize", "", "factors", mode="cubic", cubic_coeff_a=-0.5)],
            {"factors": np.asarray([1, 1, 2, 2], np.float32)},
            None,
        ),
        ([node("AveragePool", kernel_shape=[2, 2], auto_pad="SAME_UPPER", ceil_mode=1)], {}, None),
        (
            [
                node(
                    "Resize",
                    "",
                    "factors",
                    mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                )
            ],
            with_channels(2 * CHANNELS, factors=np.asarray([1, 2, 1, 1], np.float32)),
            "'Resize' at 'Resize': resizes channels; allowed: spatial axes",
        ),
    ],
)
def test_forms_that_are_refused_say_why(
    nodes: list[onnx.NodeProto], arrays: Arrays, message: str | None, tmp_path: Path
) -> None:
    model = network(nodes, dict(arrays))
    onnx.save(model, tmp_path / "network.onnx")
    if message is None:
        assert tailor_ir.compile(tmp_path / "network.onnx").space is not None
        return
    with pytest.raises(tailor_ir.ImportFailed, match=message):
        tailor_ir.compile(tmp_path / "network.onnx")

"""Real ONNX models of one operator each, of the kinds that the supported families have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Node = tuple[str, list[str], list[str], dict[str, Any]]
Shape = tuple[int, ...]


def model(
    nodes: Sequence[Node], inputs: Sequence[Shape], outputs: Sequence[Shape], weights: dict[str, np.ndarray]
) -> bytes:
    """An ONNX model with inputs in0…, outputs out0…"""
    graph = helper.make_graph(
        [
            helper.make_node(kind, ins, outs, name=f"n{number}", **attributes)
            for number, (kind, ins, outs, attributes) in enumerate(nodes)
        ],
        "operator",
        [helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, s) for i, s in enumerate(inputs)],
        [helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, s) for i, s in enumerate(outputs)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString())


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32) * np.float32(0.2)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _number(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def convolution(channels: int, filters: int, size: int, *epilogue: Node, groups: int = 1, stride: int = 1) -> bytes:
    """A 3 × 3 convolution with bias; the epilogue goes from 'conv' to 'out0'."""
    attributes = {"kernel_shape": [3, 3], "pads": [1] * 4, "group": groups, "strides": [stride] * 2}
    target = "conv" if epilogue else "out0"
    weights = {"w": _random(filters, channels // groups, 3, 3), "b": _random(filters)}
    used = {name for _, ins, _, _ in epilogue for name in ins}
    weights |= {name: value for name, value in (("low", _number(0.0)), ("high", _number(6.0))) if name in used}
    out = -(-size // stride)
    nodes = [("Conv", ["in0", "w", "b"], [target], attributes), *epilogue]
    return model(nodes, [(1, channels, size, size)], [(1, filters, out, out)], weights)


def _one(kind: str, inputs: list[Shape], output: Shape, **attributes: Any) -> bytes:
    names = [f"in{index}" for index in range(len(inputs))]
    return model([(kind, names, ["out0"], attributes)], inputs, [output], {})


def _with_weights(kind: str, source: Shape, output: Shape, weights: dict[str, np.ndarray], **attributes: Any) -> bytes:
    return model([(kind, ["in0", *weights], ["out0"], attributes)], [source], [output], weights)


_GELU: list[Node] = [
    ("Div", ["x", "root"], ["g0"], {}),
    ("Erf", ["g0"], ["g1"], {}),
    ("Add", ["g1", "one"], ["g2"], {}),
    ("Mul", ["x", "g2"], ["g3"], {}),
    ("Mul", ["g3", "half"], ["out0"], {}),
]
_GELU_NUMBERS = {"root": _number(2**0.5), "one": _number(1.0), "half": _number(0.5)}
_LINEAR: list[Node] = [("MatMul", ["in0", "w"], ["m"], {}), ("Add", ["m", "b"], ["x"], {})]
_LINEAR_WEIGHTS = {"w": _random(32, 24), "b": _random(24)}

OPERATORS: dict[str, bytes] = {
    "convolution": convolution(8, 16, 9),
    "convolution_relu": convolution(8, 16, 9, ("Relu", ["conv"], ["out0"], {})),
    "convolution_clip": convolution(8, 16, 9, ("Clip", ["conv", "low", "high"], ["out0"], {})),
    "convolution_hardswish": convolution(8, 16, 9, ("HardSwish", ["conv"], ["out0"], {})),
    "depthwise": convolution(8, 8, 9, groups=8, stride=2),
    "gemm": _with_weights("Gemm", (1, 32), (1, 10), {"w": _random(10, 32), "b": _random(10)}, transB=1),
    "linear_gelu": model(_LINEAR + _GELU, [(1, 17, 32)], [(1, 17, 24)], _LINEAR_WEIGHTS | _GELU_NUMBERS),
    "matmul": _one("MatMul", [(1, 4, 17, 8), (1, 4, 8, 17)], (1, 4, 17, 17)),
    "global_average_pool": _one("GlobalAveragePool", [(1, 8, 9, 9)], (1, 8, 1, 1)),
    "reduce_mean": _one("ReduceMean", [(1, 8, 9, 9)], (1, 8), axes=[-2, -1], keepdims=0),
    "max_pool": _one("MaxPool", [(1, 8, 9, 9)], (1, 8, 5, 5), kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
    "add_relu": model(
        [("Add", ["in0", "in1"], ["x"], {}), ("Relu", ["x"], ["out0"], {})], [(1, 8, 9, 9)] * 2, [(1, 8, 9, 9)], {}
    ),
    "scale_channels": _one("Mul", [(1, 8, 9, 9), (1, 8, 1, 1)], (1, 8, 9, 9)),
    "add_positions": _with_weights("Add", (1, 17, 32), (1, 17, 32), {"p": _random(1, 17, 32)}),
    "layer_normalization": _with_weights(
        "LayerNormalization", (1, 17, 32), (1, 17, 32), {"w": _random(32), "b": _random(32)}, axis=-1, epsilon=1e-6
    ),
    "softmax": _one("Softmax", [(1, 4, 17, 17)], (1, 4, 17, 17), axis=-1),
    "flatten": _one("Flatten", [(1, 8, 3, 3)], (1, 72)),
    "reshape_heads": _with_weights("Reshape", (1, 17, 96), (1, 17, 3, 4, 8), {"s": _ints(1, 17, 3, 4, 8)}),
    "transpose_heads": _one("Transpose", [(1, 17, 4, 8)], (1, 4, 17, 8), perm=[0, 2, 1, 3]),
    "concat_class_token": model(
        [("Concat", ["token", "in0"], ["out0"], {"axis": 1})],
        [(1, 16, 32)],
        [(1, 17, 32)],
        {"token": _random(1, 1, 32)},
    ),
    "gather_class_token": _with_weights("Gather", (1, 17, 32), (1, 32), {"i": np.array(0, dtype=np.int64)}, axis=1),
    "split": model(
        [("Split", ["in0", "s"], ["out0", "out1"], {"axis": 1})], [(1, 8, 4, 4)], [(1, 4, 4, 4)] * 2, {"s": _ints(4, 4)}
    ),
    "hard_sigmoid": _one("HardSigmoid", [(1, 8, 1, 1)], (1, 8, 1, 1), alpha=1 / 6, beta=0.5),
    "batch_normalization": _with_weights(
        "BatchNormalization",
        (1, 8, 4, 4),
        (1, 8, 4, 4),
        {"a": _random(8), "b": _random(8), "c": _random(8), "d": abs(_random(8)) + 1},
    ),
    "nothing_to_do": _one("Identity", [(1, 8, 4, 4)], (1, 8, 4, 4)),
}

"""Small real models for the agents' tests, in both formats, with the numbers they must give."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from profiling_agents.client import AgentClient, ModelJob

NCNN_MAGIC = "7767517"


def convolution_weights(channels_in: int, channels_out: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights (out, in, 3, 3) and biases (out,)."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((channels_out, channels_in, 3, 3), dtype=np.float32)
    return weights, rng.standard_normal(channels_out, dtype=np.float32)


def convolution_reference(x_bchw: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """3x3 convolution with padding 1, in float64."""
    height, width = x_bchw.shape[2:]
    padded = np.pad(x_bchw.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    result = np.zeros((x_bchw.shape[0], weights.shape[0], height, width))
    for row in range(3):
        for column in range(3):
            patch = padded[:, :, row : row + height, column : column + width]
            result += np.einsum("oc,bchw->bohw", weights[:, :, row, column], patch)
    return result + biases[None, :, None, None]


def convolution(
    backend: str, key: str, *, channels_in: int = 3, channels_out: int = 8, size: int = 8, seed: int = 0
) -> ModelJob:
    """A 3x3 convolution with padding 1 on (1, in, size, size)."""
    weights, biases = convolution_weights(channels_in, channels_out, seed)
    shape = (1, channels_in, size, size)
    if backend == "ncnn":
        layer = f"Convolution conv 1 1 in0 out0 0={channels_out} 1=3 4=1 5=1 6={weights.size} 9=0"
        return ncnn_job(key, ["Input in0 0 1 in0", layer], 2, b"\0" * 4 + weights.tobytes() + biases.tobytes(), shape)
    node = helper.make_node("Conv", ["in0", "weights", "biases"], ["out0"], pads=[1, 1, 1, 1])
    return onnx_job(key, [node], {"weights": weights, "biases": biases}, shape)


def convolution_error(client: AgentClient, backend: str, channels_in: int, channels_out: int, size: int) -> float:
    """Largest difference of a convolution's outputs from the reference, over the largest output."""
    job = convolution(backend, "conv", channels_in=channels_in, channels_out=channels_out, size=size, seed=3)
    x = np.random.default_rng(1).standard_normal((1, channels_in, size, size), dtype=np.float32)
    (output,) = client.run(job, [x])
    reference = convolution_reference(x, *convolution_weights(channels_in, channels_out, seed=3))
    return float(np.abs(output - reference).max() / np.abs(reference).max())


def quantised_convolution() -> ModelJob:
    """`convolution` of 16 and 32 channels on 16 x 16 pixels as a QDQ file: input, weights and result in int8."""
    weights, biases = convolution_weights(16, 32)
    steps = {"in0": 0.04, "weights": float(np.abs(weights).max()) / 127, "sum": 0.5}
    constants: dict[str, np.ndarray] = {
        **{f"{name}/step": np.asarray(step, np.float32) for name, step in steps.items()},
        "zero": np.asarray(128, np.uint8),
        "in int8": np.round(weights / steps["weights"]).astype(np.int8),
        "biases": biases,
    }
    nodes = [
        *_rounded("in0", "x"),
        helper.make_node("DequantizeLinear", ["in int8", "weights/step"], ["w"]),
        helper.make_node("Conv", ["x", "w", "biases"], ["sum"], pads=[1, 1, 1, 1]),
        *_rounded("sum", "out0"),
    ]
    return onnx_job("quantised", nodes, constants, (1, 16, 16, 16))


def _rounded(name: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [name, f"{name}/step", "zero"], [f"{name}/int8"]),
        helper.make_node("DequantizeLinear", [f"{name}/int8", f"{name}/step", "zero"], [result]),
    ]


def ncnn_job(key: str, layers: list[str], blobs: int, weights: bytes, *shapes: tuple[int, ...]) -> ModelJob:
    """An ncnn model of these layer lines, from in0, in1, … to out0."""
    param = "\n".join([NCNN_MAGIC, f"{len(layers)} {blobs}", *layers, ""])
    return ModelJob(
        key=key,
        format="ncnn",
        files=(param.encode(), weights),
        input_names=tuple(f"in{index}" for index in range(len(shapes))),
        input_shapes=shapes,
        output_names=("out0",),
    )


def onnx_model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], *shapes: tuple[int, ...]
) -> onnx.ModelProto:
    """An ONNX model of these nodes, from in0, in1, … to out0."""
    inputs = [helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, s) for i, s in enumerate(shapes)]
    output = helper.make_tensor_value_info("out0", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def onnx_job(
    key: str, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], *shapes: tuple[int, ...]
) -> ModelJob:
    """A job of `onnx_model`."""
    return ModelJob(
        key=key,
        format="onnx",
        files=(onnx_model(nodes, constants, *shapes).SerializeToString(),),
        input_names=tuple(f"in{index}" for index in range(len(shapes))),
        input_shapes=shapes,
        output_names=("out0",),
    )


def addition(backend: str, key: str) -> ModelJob:
    """in0 + in1 on (1, 4, 5, 6)."""
    shapes = ((1, 4, 5, 6), (1, 4, 5, 6))
    if backend == "ncnn":
        layers = ["Input in0 0 1 in0", "Input in1 0 1 in1", "BinaryOp add 2 1 in0 in1 out0 0=0"]
        return ncnn_job(key, layers, 3, b"", *shapes)
    return onnx_job(key, [helper.make_node("Add", ["in0", "in1"], ["out0"])], {}, *shapes)


def product_and_difference() -> ModelJob:
    """in0 · in1 and in0 − in1, (1, 4) each: inputs and outputs in another order than that of the file."""
    nodes = [helper.make_node("Sub", ["in0", "in1"], ["out0"]), helper.make_node("Mul", ["in0", "in1"], ["out1"])]
    model = onnx_model(nodes, {}, (1, 4), (1, 4))
    model.graph.output.append(helper.make_tensor_value_info("out1", TensorProto.FLOAT, None))
    return ModelJob(
        key="two",
        format="onnx",
        files=(model.SerializeToString(),),
        input_names=("in1", "in0"),
        input_shapes=((1, 4), (1, 4)),
        output_names=("out1", "out0"),
    )


def memory_bomb(backend: str, key: str) -> ModelJob:
    """A few hundred bytes that ask for about 100 GB when they run."""
    if backend == "ncnn":
        layers = ["Input in0 0 1 in0", "Padding pad 1 1 in0 out0 0=30000 1=30000 2=30000 3=30000"]
        return ncnn_job(key, layers, 2, b"", (1, 8, 8, 8))
    nodes = [helper.make_node("Expand", ["in0", "shape"], ["out0"])]
    return onnx_job(key, nodes, {"shape": np.array([160_000, 160_000], np.int64)}, (1, 1))


def endless(backend: str, key: str) -> ModelJob:
    """A model that runs for hours (ncnn has no loops: for half a minute)."""
    if backend == "ncnn":
        count, layers = 64 * 64 * 9, 120
        chain = [f"Convolution c{i} 1 1 b{i} b{i + 1} 0=64 1=3 4=1 5=0 6={count}" for i in range(layers)]
        weights = (b"\0" * 4 + bytes(4 * count)) * layers
        job = ncnn_job(key, ["Input in0 0 1 b0", *chain], layers + 1, weights, (1, 64, 480, 480))
        return replace(job, input_names=("b0",), output_names=(f"b{layers}",))
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition_in"], ["condition_out"]),
            helper.make_node("Sin", ["state_in"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", TensorProto.FLOAT, [1, 4]),
        ],
        [
            helper.make_tensor_value_info("condition_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, [1, 4]),
        ],
    )
    loop = helper.make_node("Loop", ["count", "", "in0"], ["out0"], body=body)
    return onnx_job(key, [loop], {"count": np.array(2**60, np.int64)}, (1, 4))

"""The precisions in which OpenVINO really computes on this processor, found by running a small model in each precision.

OpenVINO accepts a hint for every precision everywhere, and computes in fp32 if the processor lacks the precision. A
precision counts as supported when the outputs differ from fp32 by rounding. int8 has no hint: quantised layers of a model
run in int8 if the processor can; the compiled probe reports it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

from profiling_agents.messages import Precision

PRECISIONS: Mapping[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of the precisions that are set by a hint."""
EIGHT_BITS = ("i8", "u8")
CHANNELS, SIZE = 32, 16
LARGEST_ROUNDING = 0.05
"""Relative to the largest output; a larger difference is another computation, not rounding."""


def probe_model() -> onnx.ModelProto:
    """A 3x3 convolution and a matrix product, each with its own input and fixed random weights."""
    rng = np.random.default_rng(0)
    weights = {"w0": (CHANNELS, CHANNELS, 3, 3), "w1": (CHANNELS, CHANNELS)}
    nodes = [helper.make_node("Conv", ["in0", "w0"], ["out0"]), helper.make_node("MatMul", ["in1", "w1"], ["out1"])]
    inputs = [
        helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, array.shape)
        for i, array in enumerate(probe_inputs())
    ]
    outputs = [helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, None) for i in range(len(inputs))]
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name) for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "probe", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def int8_model() -> onnx.ModelProto:
    """The probe's convolution with its input and its weights in int8."""
    tensor = helper.make_tensor_value_info
    weights = np.random.default_rng(0).integers(-127, 128, (CHANNELS, CHANNELS, 3, 3), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["in0", "scale", "zero"], ["quantised"]),
        helper.make_node("DequantizeLinear", ["quantised", "scale", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["out0"]),
    ]
    tensors = {"scale": np.float32(0.02), "zero": np.uint8(128), "weights": weights}
    graph = helper.make_graph(
        nodes,
        "probe",
        [tensor("in0", TensorProto.FLOAT, probe_inputs()[0].shape)],
        [tensor("out0", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def runs_in_int8(compiled: openvino.CompiledModel) -> bool:
    """Whether a convolution of a compiled model computes in 8 bits."""
    nodes = compiled.get_runtime_model().get_ordered_ops()
    facts = (node.get_rt_info() for node in nodes if node.get_type_name() != "Result")
    return any(
        str(one["layerType"].value) == "Convolution" and str(one["runtimePrecision"].value) in EIGHT_BITS
        for one in facts
    )


def probe_inputs() -> list[np.ndarray]:
    """Fixed random inputs of the probe."""
    rng = np.random.default_rng(1)
    shapes = ((1, CHANNELS, SIZE, SIZE), (SIZE, CHANNELS))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def rounded_precisions(outputs: Mapping[Precision, Sequence[np.ndarray]]) -> tuple[Precision, ...]:
    """fp32, and the precisions whose outputs all differ from fp32 by rounding alone."""
    exact = outputs["fp32"]
    rounded = (
        precision
        for precision, found in outputs.items()
        if all(_is_rounded(*pair) for pair in zip(found, exact, strict=True))
    )
    return ("fp32", *rounded)


def _is_rounded(output: np.ndarray, reference: np.ndarray) -> bool:
    difference = float(np.abs(output - reference).max() / np.abs(reference).max())
    return 0.0 < difference <= LARGEST_ROUNDING

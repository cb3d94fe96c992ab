"""The precisions in which OpenVINO really computes on this processor, found by running a small model in each precision.

OpenVINO takes a hint for every precision everywhere, and computes in fp32 where the processor lacks the precision. A
precision counts as supported when the outputs differ from fp32 by rounding.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from profiling_agents.messages import Precision

PRECISIONS: Mapping[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's words."""
CHANNELS, SIZE = 32, 16
LARGEST_ROUNDING = 0.05
"""Relative to the largest output; more than that is another computation, not rounding."""


def probe_model() -> onnx.ModelProto:
    """A 3x3 convolution and a matrix product, each of an input of its own, with fixed random weights."""
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


def probe_inputs() -> list[np.ndarray]:
    """Fixed random inputs of the probe."""
    rng = np.random.default_rng(1)
    shapes = ((1, CHANNELS, SIZE, SIZE), (SIZE, CHANNELS))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def rounded_precisions(outputs: Mapping[Precision, Sequence[np.ndarray]]) -> tuple[Precision, ...]:
    """fp32, and the precisions all of whose outputs are those of fp32 but for rounding."""
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

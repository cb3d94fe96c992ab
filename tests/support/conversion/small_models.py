"""Small ONNX models for rules of the conversion."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
Arrays = Mapping[str, np.ndarray]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed numbers in fp32."""
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers from 0.5 on in fp32."""
    return np.abs(weights(*shape, seed=seed)) + np.float32(0.5)


def ints(*values: int) -> np.ndarray:
    """A row of whole numbers."""
    return np.asarray(values, np.int64)


def number(value: float) -> np.ndarray:
    """A single number in fp32."""
    return np.asarray(value, np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; names of values are parted by spaces, `_` stands for an absent one."""
    read, made = (["" if name == "_" else name for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(op, read, made, name=f"{op}_{outputs.split()[0]}", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    arrays: Arrays | None = None,
    *,
    shape: Sequence[int | str] = (2, 4, 6, 6),
    outputs: Sequence[str] = ("y",),
    opset: int = OPSET,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A checked model from the input `x` to the outputs, whose shapes are inferred."""
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (arrays or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    found = {info.name: info for info in onnx.shape_inference.infer_shapes(made, data_prop=True).graph.output}
    for info in made.graph.output:
        info.CopyFrom(found[info.name])
    onnx.checker.check_model(made)
    return made


def operators(converted: onnx.ModelProto) -> list[str]:
    """The operators of a model, in order."""
    return [each.op_type for each in converted.graph.node]

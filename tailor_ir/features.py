"""What an operator is to a device: a record that two operators share exactly when the device does the same work."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tailor_ir.emit import emit, to_onnx
from tailor_ir.graph import Attribute

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureStep:
    """One node inside an operator. Names are local: in0, in1 … inputs, p0 … parameters, c0 … constants, t0 … results."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...]


@dataclass(frozen=True, slots=True)
class ConstantValue:
    """A small constant operand, such as the target of a Reshape."""

    dtype: str
    shape: Shape
    values: tuple[int | float, ...]

    def array(self) -> np.ndarray:
        return np.asarray(self.values, dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True, kw_only=True)
class OperatorFeature:
    """An operator as a runtime executes it: a main node with what is fused into it, all shapes fixed, batch 1.

    BatchNorm after a convolution or linear map is folded into its weights and bias and leaves no step.
    """

    steps: tuple[FeatureStep, ...]
    input_shapes: tuple[Shape, ...]
    parameter_shapes: tuple[Shape, ...]
    constants: tuple[ConstantValue, ...]
    output_shapes: tuple[Shape, ...]
    outputs: tuple[str, ...]
    step_shapes: tuple[Shape, ...]

    @property
    def operator(self) -> str:
        """The main operator's name; `Attention` for the operators between the projections of an attention block."""
        if sum(step.op == "MatMul" for step in self.steps) > 1:
            return "Attention"
        return self.steps[0].op

    @property
    def epilogue(self) -> tuple[str, ...]:
        """The operators fused after the main one."""
        return () if self.operator == "Attention" else tuple(step.op for step in self.steps[1:])

    @property
    def attributes(self) -> tuple[tuple[str, Attribute], ...]:
        """Attributes of the main operator."""
        return self.steps[0].attributes

    @cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.input_shapes, self.parameter_shapes, self.constants, self.output_shapes))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def digest(self) -> str:
        """Name of the operator in tables, 16 hex characters."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of convolutions and matrix products."""
        shapes = self._shapes()
        total = 0
        for step, output in zip(self.steps, self.step_shapes, strict=True):
            if step.op == "Conv":
                total += prod(output) * prod(shapes[step.inputs[1]][1:])
            elif step.op == "Linear":
                total += prod(output) * shapes[step.inputs[1]][1]
            elif step.op == "MatMul":
                total += prod(output) * shapes[step.inputs[0]][-1]
        return total

    @property
    def parameters(self) -> int:
        """Number of parameters, BatchNorm folded."""
        return sum(prod(shape) for shape in self.parameter_shapes)

    def _shapes(self) -> dict[str, Shape]:
        named = {f"in{i}": shape for i, shape in enumerate(self.input_shapes)}
        named.update((f"p{i}", shape) for i, shape in enumerate(self.parameter_shapes))
        named.update((f"c{i}", constant.shape) for i, constant in enumerate(self.constants))
        named.update((step.outputs[0], shape) for step, shape in zip(self.steps, self.step_shapes, strict=True))
        return named

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` gives an equal record."""
        return {
            "operator": self.operator,
            "steps": [
                {
                    "op": s.op,
                    "inputs": list(s.inputs),
                    "outputs": list(s.outputs),
                    "attributes": {k: list(v) if isinstance(v, tuple) else v for k, v in s.attributes},
                }
                for s in self.steps
            ],
            "input_shapes": [list(s) for s in self.input_shapes],
            "parameter_shapes": [list(s) for s in self.parameter_shapes],
            "constants": [[c.dtype, list(c.shape), list(c.values)] for c in self.constants],
            "output_shapes": [list(s) for s in self.output_shapes],
            "outputs": list(self.outputs),
            "step_shapes": [list(s) for s in self.step_shapes],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "OperatorFeature":
        """The record that `to_json` described."""

        def shapes(key: str) -> tuple[Shape, ...]:
            return tuple(tuple(s) for s in data[key])

        return OperatorFeature(
            steps=tuple(
                FeatureStep(
                    op=s["op"],
                    inputs=tuple(s["inputs"]),
                    outputs=tuple(s["outputs"]),
                    attributes=tuple(
                        sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in s["attributes"].items())
                    ),
                )
                for s in data["steps"]
            ),
            input_shapes=shapes("input_shapes"),
            parameter_shapes=shapes("parameter_shapes"),
            constants=tuple(ConstantValue(d, tuple(s), tuple(v)) for d, s, v in data["constants"]),
            output_shapes=shapes("output_shapes"),
            outputs=tuple(data["outputs"]),
            step_shapes=shapes("step_shapes"),
        )


def operator_model(feature: OperatorFeature, seed: int = 0) -> bytes:
    """ONNX model of one operator with random weights; inputs in0, in1 …, output out0, out1 …"""
    import onnx_graphsurgeon as gs

    rng = np.random.default_rng(seed)
    tensors: dict[str, gs.Tensor] = {}
    for i, shape in enumerate(feature.input_shapes):
        tensors[f"in{i}"] = gs.Variable(f"in{i}", np.float32, shape)
    for i, shape in enumerate(feature.parameter_shapes):
        fan_in = max(prod(shape[1:]), 1)
        tensors[f"p{i}"] = gs.Constant(f"p{i}", (rng.standard_normal(shape) / fan_in**0.5).astype(np.float32))
    for i, constant in enumerate(feature.constants):
        tensors[f"c{i}"] = gs.Constant(f"c{i}", constant.array())
    results = {name: f"out{i}" for i, name in enumerate(feature.outputs)}
    output_shapes = dict(zip(feature.outputs, feature.output_shapes, strict=True))
    step_shapes = {s.outputs[0]: shape for s, shape in zip(feature.steps, feature.step_shapes, strict=True)}
    nodes: list[gs.Node] = []
    for index, step in enumerate(feature.steps):
        for name in step.outputs:
            known = output_shapes.get(name, step_shapes.get(name))
            tensors[name] = gs.Variable(results.get(name, name), np.float32, known)
        inputs = [tensors[name] if name else gs.Variable.empty() for name in step.inputs]
        nodes += emit(step.op, f"step{index}", inputs, [tensors[o] for o in step.outputs], dict(step.attributes))
    inputs = [tensors[f"in{i}"] for i in range(len(feature.input_shapes))]
    return to_onnx(nodes, inputs, [tensors[name] for name in feature.outputs], "operator").SerializeToString()

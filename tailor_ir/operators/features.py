"""Features of operators: equal if and only if a device does the same work for two operators."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tailor_ir.graph import Attribute, Node
from tailor_ir.ops.macs import macs_of
from tailor_ir.subnets.onnx_export import emit, to_onnx

Shape = tuple[int, ...]
FLOAT = "float32"


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
    """An operator as a runtime executes it: a main node with the nodes fused into it; all shapes, also the batch, are fixed.

    BatchNorm after a convolution or linear map is folded into its weights and bias and leaves no step. `step_shapes`: shapes of
    all results in order, t0, t1 … `element_types`: (local name, type) of inputs and parameters that are not float32.
    """

    steps: tuple[FeatureStep, ...]
    input_shapes: tuple[Shape, ...]
    parameter_shapes: tuple[Shape, ...]
    constants: tuple[ConstantValue, ...]
    output_shapes: tuple[Shape, ...]
    outputs: tuple[str, ...]
    step_shapes: tuple[Shape, ...]
    element_types: tuple[tuple[str, str], ...] = ()

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
        # only of numbers: cheap, and the same in every process; __eq__ separates features that differ elsewhere
        return hash((len(self.steps), self.input_shapes, self.parameter_shapes, self.output_shapes))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def digest(self) -> str:
        """Name of the operator in tables, 16 hex characters."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of convolutions, matrix products and recurrent layers."""
        nodes = (
            Node(name="", op=step.op, inputs=step.inputs, outputs=step.outputs, attributes=step.attributes)
            for step in self.steps
        )
        return macs_of(nodes, self._shapes())

    @property
    def parameters(self) -> int:
        """Number of parameters, BatchNorm folded."""
        return sum(prod(shape) for shape in self.parameter_shapes)

    def _shapes(self) -> dict[str, Shape]:
        named = {f"in{i}": shape for i, shape in enumerate(self.input_shapes)}
        named.update((f"p{i}", shape) for i, shape in enumerate(self.parameter_shapes))
        named.update((f"c{i}", constant.shape) for i, constant in enumerate(self.constants))
        named.update((f"t{i}", shape) for i, shape in enumerate(self.step_shapes))
        return named

    def to_json(self) -> dict[str, Any]:
        """Plain data of strict JSON, whose numbers are finite; `from_json` gives an equal record."""
        plain: dict[str, Any] = {
            "operator": self.operator,
            "steps": [
                {
                    "op": s.op,
                    "inputs": list(s.inputs),
                    "outputs": list(s.outputs),
                    "attributes": {k: _plain(v) for k, v in s.attributes},
                }
                for s in self.steps
            ],
            "input_shapes": [list(s) for s in self.input_shapes],
            "parameter_shapes": [list(s) for s in self.parameter_shapes],
            "constants": [[c.dtype, list(c.shape), _plain(c.values)] for c in self.constants],
            "output_shapes": [list(s) for s in self.output_shapes],
            "outputs": list(self.outputs),
            "step_shapes": [list(s) for s in self.step_shapes],
        }
        if self.element_types:
            plain["element_types"] = dict(self.element_types)
        return plain

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
                    attributes=tuple(sorted((k, _read(v)) for k, v in s["attributes"].items())),
                )
                for s in data["steps"]
            ),
            input_shapes=shapes("input_shapes"),
            parameter_shapes=shapes("parameter_shapes"),
            constants=tuple(ConstantValue(d, tuple(s), _read(v)) for d, s, v in data["constants"]),
            output_shapes=shapes("output_shapes"),
            outputs=tuple(data["outputs"]),
            step_shapes=shapes("step_shapes"),
            element_types=tuple(sorted(data.get("element_types", {}).items())),
        )


def _plain(value: Any) -> Any:
    """A value for JSON; infinities and NaN as {"float": text}, since JSON has no such numbers."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return {"float": repr(value)} if isinstance(value, float) and not isfinite(value) else value


def _read(value: Any) -> Any:
    """The value that `_plain` described."""
    if isinstance(value, list):
        return tuple([_read(one) for one in value])
    return float(value["float"]) if isinstance(value, Mapping) else value


class _ModelBuilder:
    """Builds the ONNX model of one operator."""

    def __init__(self, feature: OperatorFeature, seed: int) -> None:
        self.feature, self.rng = feature, np.random.default_rng(seed)
        self.shapes = feature._shapes()
        self.types = dict(feature.element_types)
        self.tensors: dict[str, gs.Tensor] = {"": gs.Variable.empty()}

    def build(self) -> onnx.ModelProto:
        feature = self.feature
        inputs = [gs.Variable(f"in{i}", self._type(f"in{i}"), s) for i, s in enumerate(feature.input_shapes)]
        self.tensors.update((tensor.name, tensor) for tensor in inputs)
        for i, shape in enumerate(feature.parameter_shapes):
            self.tensors[f"p{i}"] = gs.Constant(f"p{i}", self._parameter(f"p{i}", shape))
        for i, constant in enumerate(feature.constants):
            self.tensors[f"c{i}"] = gs.Constant(f"c{i}", constant.array())
        results = {name: f"out{i}" for i, name in enumerate(feature.outputs)}
        nodes: list[gs.Node] = []
        for index, step in enumerate(feature.steps):
            for name in filter(None, step.outputs):
                self.tensors[name] = gs.Variable(results.get(name, name), np.float32, self.shapes.get(name))
            operands = [self.tensors[name] for name in step.inputs]
            outputs = [self.tensors[name] for name in step.outputs]
            nodes += emit(step.op, f"step{index}", operands, outputs, dict(step.attributes))
        return to_onnx(nodes, inputs, [self.tensors[name] for name in feature.outputs], "operator")

    def _type(self, name: str) -> np.dtype[Any]:
        return np.dtype(self.types.get(name, FLOAT))

    def _parameter(self, name: str, shape: Shape) -> np.ndarray:
        """Random values; integers are positions if they are used for a look-up, else zeros."""
        kind = self._type(name)  # numpy's generator returns scalars, not arrays, for shape ()
        if kind.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if kind.kind != "f":
            looked_up = [s for s in self.feature.steps if s.op == "Gather" and s.inputs[1] == name]
            sizes = [self.shapes[s.inputs[0]][int(dict(s.attributes).get("axis", 0))] for s in looked_up]  # type: ignore[arg-type]
            return np.asarray(self.rng.integers(0, min(sizes, default=1), shape), kind)
        fan_in = max(prod(shape[1:]), 1)
        return np.asarray(self.rng.standard_normal(shape) / fan_in**0.5, kind)


def operator_model(feature: OperatorFeature, seed: int = 0) -> bytes:
    """ONNX model of one operator with random weights; inputs in0, in1 …, output out0, out1 …"""
    model: bytes = _ModelBuilder(feature, seed).build().SerializeToString()
    return model

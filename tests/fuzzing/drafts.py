"""A network while it is being drawn: the values so far, what can be picked from them, and nodes that are added."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzzing.networks import BATCH, IR_VERSION, TOKENS, TYPES, Network, Shape, Step, constant_array

SAMPLES = (5, 7)
"""Shapes are inferred for so many samples, which tells the axes that follow the batch from others."""
WIDTHS = (8, 8, 12, 16, 16, 24, 32, 48, 10, 9, 20)
NAMES = {number: name for name, number in TYPES.items()}
CLEAR = 0.15
"""Probability that a weight of equal shape is used again."""
DEFAULT = 0.05
"""Probability that a node leaves one of its attributes out."""


class Unfit(Exception):
    """Nothing here can be read in the way that is asked for: another draw."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the draft. shape, other: for both numbers of samples; they are equal for what does not follow the input."""

    name: str
    shape: tuple[int, ...]
    other: tuple[int, ...]
    kind: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def plain(self) -> bool:
        """Whether the first axis, and no other one, is the batch."""
        return self.rank > 0 and (self.shape[0], self.other[0]) == SAMPLES and self.shape[1:] == self.other[1:]

    @property
    def target(self) -> list[int]:
        """The shape as a Reshape to it writes it."""
        return [size if size == other else -1 for size, other in zip(self.shape, self.other, strict=True)]


@dataclass(slots=True)
class Draft:
    """rng draws everything. opset: of the file. small: few channels."""

    rng: np.random.Generator
    opset: int
    inputs: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    # -- drawing -----------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def width(self) -> int:
        return int(self.choose(WIDTHS))

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """One of the values that fit, the later the likelier. Unfit: there is none."""
        found = [value for value in self.values if fits(value)]
        if not found:
            raise Unfit
        position = len(found) - 1 - int(self.rng.geometric(0.4) - 1) % len(found)
        return found[position]

    # -- names, weights, constants -----------------------------------------------------------------------------------

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def weight(self, *shape: int, letter: str = "w") -> str:
        """A weight, now and then one that is there already."""
        same = [name for name, known in self.weights.items() if known == shape and name[0] == letter]
        if same and self.chance(CLEAR):
            return str(self.choose(same))
        name = self.name(letter)
        self.weights[name] = shape
        return name

    def constant(self, value: Any) -> str:
        name = self.name("c")
        self.constants[name] = value
        return name

    def input(self, kind: str, *shape: int) -> Value:
        """One more input of the network."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (kind, (BATCH, *shape))
        return self._keep(Value(name, (SAMPLES[0], *shape), (SAMPLES[1], *shape), kind))

    # -- nodes -------------------------------------------------------------------------------------------------------

    def add(self, op: str, inputs: str, count: int = 1, **attributes: Any) -> list[Value]:
        """A node and its results; now and then an attribute keeps its default. Unfit: ONNX's inference of shapes refuses it."""
        made = " ".join(self.name("v") for _ in range(count))
        step = Step(op, inputs, made, attributes)
        one, other = found = [self._inferred(step, place) for place in (0, 1)]
        if attributes and self.chance(DEFAULT):
            left_out = self.choose(list(attributes))
            plain = Step(op, inputs, made, {name: given for name, given in attributes.items() if name != left_out})
            with suppress(Unfit):
                step = plain if [self._inferred(plain, place) for place in (0, 1)] == found else step
        self.steps.append(step)
        return [self._keep(Value(name, one[name][0], other[name][0], one[name][1])) for name in step.made]

    def one(self, op: str, inputs: str, **attributes: Any) -> Value:
        """A node of one result."""
        return self.add(op, inputs, **attributes)[0]

    def raw(self, op: str, inputs: str, **attributes: Any) -> str:
        """A node about shapes, whose result no recipe picks; its name."""
        name = self.name("s")
        self.steps.append(Step(op, inputs, name, attributes))
        return name

    def known(self, op: str, inputs: str, rest: tuple[int, ...]) -> Value:
        """A node whose result has the batch and these sizes."""
        one, other = ((samples, *rest) for samples in SAMPLES)
        return self._keep(Value(self.raw(op, inputs), one, other, "float32"))

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def value(self, name: str) -> Value:
        """A value, weight or constant by name."""
        if name in self.weights:
            return Value(name, self.weights[name], self.weights[name], "float32")
        if name in self.constants:
            array = constant_array(self.constants[name])
            return Value(name, array.shape, array.shape, array.dtype.name)
        return next(value for value in self.values if value.name == name)

    def _inferred(self, step: Step, place: int) -> dict[str, tuple[tuple[int, ...], str]]:
        given, stored = [], []
        for name in dict.fromkeys(step.read):
            if name in self.constants:
                stored.append(numpy_helper.from_array(constant_array(self.constants[name]), name))
                continue
            value = self.value(name)
            shape = (value.shape, value.other)[place]
            given.append(helper.make_tensor_value_info(name, TYPES[value.kind], shape))
        results = [helper.make_empty_tensor_value_info(name) for name in step.made]
        graph = helper.make_graph([step.node()], "one", given, results, stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION)
        try:
            made = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception as error:  # C++ exceptions come as several Python types
            raise Unfit(str(error)) from error
        found = {}
        for info in made.graph.output:
            kind = info.type.tensor_type
            sizes = tuple(size.dim_value for size in kind.shape.dim)
            if kind.elem_type not in NAMES or not kind.HasField("shape") or not all(sizes):
                raise Unfit(f"{step.op}: {sizes} of type {kind.elem_type}")
            found[info.name] = (sizes, NAMES[kind.elem_type])
        return found

    # -- forms that differ by opset ----------------------------------------------------------------------------------

    def by_axes(self, op: str, inputs: str, axes: Sequence[int], since: int = 13, **attributes: Any) -> Value:
        """An operator whose axes are an attribute up to an opset, and an input from it on."""
        if self.opset < since:
            return self.one(op, inputs, axes=list(axes), **attributes)
        return self.one(op, f"{inputs} {self.constant(list(axes))}", **attributes)

    def reshape(self, value: str, sizes: Sequence[int]) -> Value:
        """0 keeps an axis, -1 is the rest."""
        return self.one("Reshape", f"{value} {self.constant(list(sizes))}")

    def transpose(self, value: str, *order: int) -> Value:
        return self.one("Transpose", value, perm=list(order))

    def linear(self, value: Value, out: int, bias: bool = True) -> Value:
        """A linear map of the last axis."""
        if value.rank == 2 and self.chance(0.5):
            weight, transposed = ((out, value.shape[1]), 1) if self.chance(0.7) else ((value.shape[1], out), 0)
            more = f" {self.weight(out, letter='b')}" if bias else ""
            return self.one("Gemm", f"{value.name} {self.weight(*weight)}{more}", transB=transposed)
        product = self.one("MatMul", f"{value.name} {self.weight(value.shape[-1], out)}")
        return self.one("Add", f"{product.name} {self.weight(out, letter='b')}") if bias else product

    # -- values of a form: picked, or made of others -----------------------------------------------------------------

    def any(self) -> Value:
        return self.pick(lambda v: v.kind == "float32" and v.plain)

    def image(self) -> Value:
        """(N, C, H, W)"""
        return self._of_form(4, lambda v: self.reshape(self.linear(self.vector(), 8 * 16).name, [0, 8, 4, 4]))

    def sequence(self) -> Value:
        """(N, T, C)"""

        def made(value: Value) -> Value:
            if value.rank == 4:
                flat = self.reshape(value.name, [0, 0, -1])
                return self.transpose(flat.name, 0, 2, 1)
            return self.reshape(self.linear(self.vector(), 4 * 12).name, [0, 4, 12])

        return self._of_form(3, made)

    def signal(self) -> Value:
        """(N, C, L)"""
        value = self.sequence()
        return self.transpose(value.name, 0, 2, 1) if self.chance(0.5) else value

    def vector(self) -> Value:
        """(N, C)"""

        def made(value: Value) -> Value:
            if value.rank == 1:
                return self.linear(self.by_axes("Unsqueeze", value.name, [1]), 8)
            way = int(self.rng.integers(3))
            if way == 0 and value.rank > 2 and np.prod(value.shape[1:]) <= 1024:
                return self.one("Flatten", value.name, axis=1)
            if way == 1 and value.rank == 4:
                return self.one("Flatten", self.one("GlobalAveragePool", value.name).name)
            if value.rank == 2:
                return value
            axes = [1] if value.rank == 3 and self.chance(0.5) else list(range(2, value.rank))
            return self.by_axes("ReduceMean", value.name, axes, since=18, keepdims=0)

        return self._of_form(2, made)

    def volume(self) -> Value:
        """(N, C, D, H, W)"""
        return self._of_form(5, lambda v: self.reshape(self.linear(self.vector(), 8 * 8).name, [0, 8, 2, 2, 2]))

    def _of_form(self, rank: int, made: Callable[[Value], Value]) -> Value:
        """A value of a rank, mostly one that is there. An axis of one element counts as none."""
        if self.chance(0.9):
            with suppress(Unfit):  # no such value is there: one is made
                return self.pick(lambda v: v.kind == "float32" and v.plain and v.rank == rank and v.shape[-1] > 1)
        return made(self.any())

    def spatial(self, least: int = 4) -> Value:
        """An image with at least so many rows and columns."""
        try:
            return self.pick(lambda v: v.kind == "float32" and v.plain and v.rank == 4 and min(v.shape[2:]) >= least)
        except Unfit:
            return self.input("float32", self.choose((3, 8, 4)), *((8, 8) if least <= 8 else (least, least)))

    def tokens(self) -> Value:
        """(N, T) of whole numbers below TOKENS"""
        try:
            return self.pick(lambda v: v.name in self.inputs and v.kind in ("int64", "int32") and v.rank == 2)
        except Unfit:
            return self.input("int64", int(self.choose((4, 6, 8))))

    # -- the end -----------------------------------------------------------------------------------------------------

    def network(self, outputs: Sequence[str], written: Sequence[str], fixed_batch: int) -> Network:
        return Network(
            inputs=self.inputs,
            steps=tuple(self.steps),
            outputs=tuple(outputs),
            weights=self.weights,
            constants=self.constants,
            written=tuple(written),
            opset=self.opset,
            fixed_batch=fixed_batch,
        ).needed()


__all__ = ["SAMPLES", "TOKENS", "Draft", "Unfit", "Value"]

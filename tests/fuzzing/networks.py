"""Networks as plain data: small, printable, and the same on every machine. A seed gives one, a test can hold one as text."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int | str, ...]
BATCH = "N"
"""The open size of the first axis of every input."""
IR_VERSION = 10
TYPES = {
    "float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One node of ONNX. inputs and outputs: names parted by spaces, `_` for an absent one."""

    op: str
    inputs: str
    outputs: str
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        more = f", {dict(self.attributes)!r}" if self.attributes else ""
        return f"Step({self.op!r}, {self.inputs!r}, {self.outputs!r}{more})"

    @property
    def read(self) -> list[str]:
        return [name for name in self.inputs.split() if name != "_"]

    @property
    def made(self) -> list[str]:
        return [name for name in self.outputs.split() if name != "_"]

    def node(self) -> onnx.NodeProto:
        read, made = (["" if n == "_" else n for n in names.split()] for names in (self.inputs, self.outputs))
        return helper.make_node(self.op, read, made, name=f"{self.op}_{made[0]}", **self.attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network whose weights follow from their names and shapes.

    inputs: name -> element type and shape, `BATCH` first. weights: name -> shape; the first letter of a name says what numbers
    it has (`array_of`). constants: name -> whole numbers or floats, nested lists. written: names of weights and constants that
    are Constant nodes, not initializers. fixed_batch: the file says so many samples; 0: it leaves the batch open.
    """

    inputs: Mapping[str, tuple[str, Shape]]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    opset: int = 17
    fixed_batch: int = 0

    @property
    def drops_a_batch_of_one(self) -> bool:
        """Whether a `Squeeze` without axes takes the axis of samples for one to be dropped, where there is one sample."""
        squeezes = (step for step in self.steps if step.op == "Squeeze")
        return any(len(step.read) == 1 and "axes" not in step.attributes for step in squeezes)

    def arrays(self) -> dict[str, np.ndarray]:
        """Values of all weights and constants."""
        found = {name: array_of(name, shape) for name, shape in self.weights.items()}
        return found | {name: constant_array(value) for name, value in self.constants.items()}

    def model(self, batch: int | str = BATCH) -> onnx.ModelProto:
        """The file; shapes of values are inferred by whoever reads it."""
        arrays = self.arrays()
        written = [
            helper.make_node(
                "Constant", [], [name], name=f"constant_{name}", value=numpy_helper.from_array(arrays[name])
            )
            for name in self.written
        ]
        graph = helper.make_graph(
            written + [step.node() for step in self.steps],
            "drawn",
            [
                helper.make_tensor_value_info(name, TYPES[kind], [batch if size == BATCH else size for size in shape])
                for name, (kind, shape) in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in self.written],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION)
        found = {info.name: info for info in onnx.shape_inference.infer_shapes(made, data_prop=True).graph.output}
        for info in made.graph.output:
            if found[info.name].type.HasField("tensor_type"):
                info.CopyFrom(found[info.name])
            else:  # inference does not enter functions, such as GroupNormalization
                info.CopyFrom(helper.make_tensor_value_info(info.name, TYPES["float32"], None))
        return made

    def feeds(
        self, batch: int, seed: int, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> dict[str, np.ndarray]:
        """A random batch of each input. shapes: of inputs of another resolution."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, (kind, shape) in self.inputs.items():
            sizes = tuple(shapes[name]) if shapes else tuple(batch if size == BATCH else int(size) for size in shape)
            if kind == "float32":
                found[name] = rng.standard_normal(sizes).astype(np.float32)
            elif kind == "bool":
                found[name] = rng.random(sizes) < 0.5  # type: ignore[assignment]
            else:
                found[name] = rng.integers(0, 250 if kind == "uint8" else TOKENS, sizes).astype(kind)
        return found

    def needed(self) -> "Network":
        """The network without what its outputs do not need."""
        wanted, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if wanted.intersection(step.made):
                wanted.update(step.read)
                steps.append(step)
        return replace(
            self,
            steps=tuple(reversed(steps)),
            inputs={name: given for name, given in self.inputs.items() if name in wanted},
            weights={name: shape for name, shape in self.weights.items() if name in wanted},
            constants={name: value for name, value in self.constants.items() if name in wanted},
            written=tuple(name for name in self.written if name in wanted),
        )

    def text(self) -> str:
        """A Python expression that makes this network, to be pasted into a test."""
        lines = [f"    inputs={dict(self.inputs)!r},", "    steps=("]
        lines += [f"        {step!r}," for step in self.steps]
        lines += ["    ),", f"    outputs={self.outputs!r},"]
        for name in ("weights", "constants", "written", "opset", "fixed_batch"):
            value = getattr(self, name)
            if value != DEFAULTS[name]:
                lines.append(f"    {name}={dict(value) if isinstance(value, Mapping) else value!r},")
        return "\n".join(["Network(", *lines, ")"])

    def operators(self) -> set[str]:
        return {step.op for step in self.steps}


DEFAULTS: dict[str, Any] = {"weights": {}, "constants": {}, "written": (), "opset": 17, "fixed_batch": 0}
TOKENS = 16
"""Tokens are below it; tables that are looked up by them have so many rows."""


def array_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight's numbers. w: of a layer, about 1 / √inputs; b: small, around zero; g: around one, positive."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape)
    match name[0]:
        case "w":
            fan = int(np.prod(shape[1:])) if len(shape) > 1 else max(1, *shape, 1)
            drawn = drawn / np.sqrt(max(fan, 1))
        case "g":
            drawn = 0.7 + 0.5 * np.abs(drawn)
        case _:
            drawn = 0.3 * drawn
    return np.asarray(drawn, np.float32)


def constant_array(value: Any) -> np.ndarray:
    """Whole numbers as int64, truth values as bool, other numbers as float32."""
    array = np.asarray(value)
    if array.dtype == bool:
        return array
    if array.size and np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64)
    return array.astype(np.float32)


def axes_with(pairs: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Positions at which two sizes differ."""
    return tuple(position for position, (one, other) in enumerate(pairs) if one != other)

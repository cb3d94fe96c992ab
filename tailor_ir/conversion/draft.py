"""An ONNX model while it is rewritten, and the record of a rule of the conversion.

A draft has its nodes, its constants, and the maker and readers of each value, by the values' names. A rule states its
match, its replacement, and how much results may change.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tailor_ir.conversion.nodes import STANDARD_DOMAINS, Attributes, OnnxNode

MOST_INFERRED = 1024
"""Elements of a constant whose values are looked at when shapes are inferred: shapes, axes, sizes."""

FED = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)
"""Types of constants that can be inputs of the model while it is looked at."""

Size = int | str | None
"""A dimension: its size, the name of an unknown size, or nothing known."""


class OnnxDraft:
    """One model, changed in place by rules. Values inside subgraphs are left alone."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self._model = onnx.ModelProto()
        self._model.CopyFrom(_without_contents(model))
        self.opset = next((each.version for each in model.opset_import if each.domain in STANDARD_DOMAINS), 1)
        self.inputs = tuple(info.name for info in graph.input)
        self.outputs = tuple(info.name for info in graph.output)
        self._constants = {each.name: each for each in graph.initializer if each.name not in self.inputs}
        self._defaults = [each for each in graph.initializer if each.name in self.inputs]
        self._arrays: dict[str, np.ndarray] = {}
        self._digests: dict[str, bytes] = {}
        self._infos = {each.name: each for each in (*graph.value_info, *graph.input, *graph.output)}
        self.nodes: dict[OnnxNode, None] = {}
        self._producers: dict[str, OnnxNode] = {}
        self._readers: dict[str, list[OnnxNode]] = {}
        for proto in graph.node:
            self._enter(OnnxNode.read(proto))
        within = {name for node in self.nodes for part in node.graphs for name in _names_read(part)}
        self.kept = frozenset({*self.outputs, *within})
        """Values whose names have to stay: the model's outputs, and what subgraphs read."""
        self._names = {*self.inputs, *self._constants, *self._producers, *within}

    def _enter(self, node: OnnxNode) -> None:
        self.nodes[node] = None
        self._producers |= {name: node for name in node.outputs if name}
        for name in {*node.inputs} - {""}:
            self._readers.setdefault(name, []).append(node)

    # What is there

    def in_order(self) -> list[OnnxNode]:
        """The nodes, each behind those whose results it reads, otherwise in the order of the file."""
        done: dict[OnnxNode, None] = {}
        edges = sum(len(node.inputs) for node in self.nodes) + len(self._names)
        for start in self.nodes:
            waiting = [start]
            while waiting:
                assert len(waiting) <= edges + 1, f"'{start.name}' reads its own result"
                node = waiting[-1]
                missing = [p for p in self._needs(node) if p not in done]
                waiting += missing
                if not missing:
                    done[waiting.pop()] = None
        return list(done)

    def _needs(self, node: OnnxNode) -> Iterator[OnnxNode]:
        names = (*node.inputs, *(name for part in node.graphs for name in _names_read(part)))
        return (self._producers[name] for name in names if name in self._producers)

    def producer(self, name: str, *ops: str) -> OnnxNode | None:
        """The node whose result this is, where it is one of these operators of ONNX (any, without names)."""
        node = self._producers.get(name)
        return node if node and (not ops or (node.standard and node.op in ops)) else None

    def readers(self, name: str) -> tuple[OnnxNode, ...]:
        """The nodes that read the value, each once."""
        return tuple(self._readers.get(name, ()))

    def read_once(self, name: str) -> bool:
        """Whether one node alone needs the value."""
        return name not in self.kept and len(self._readers.get(name, ())) == 1

    def only_reader(self, name: str, *ops: str) -> OnnxNode | None:
        """The one node that needs the value, where it is one of these operators of ONNX."""
        if not self.read_once(name):
            return None
        (node,) = self._readers[name]
        return node if not ops or (node.standard and node.op in ops) else None

    def array(self, name: str) -> np.ndarray | None:
        """The value of a constant, None for other values."""
        if name not in self._arrays:
            if name not in self._constants:
                return None
            self._arrays[name] = numpy_helper.to_array(self._constants[name])
        return self._arrays[name]

    def digest(self, name: str) -> bytes:
        """A digest of a constant's elements."""
        if name not in self._digests:
            array = self.array(name)
            assert array is not None, f"'{name}' is no constant"
            self._digests[name] = sha256(array.tobytes()).digest()
        return self._digests[name]

    def scalar(self, name: str) -> float | None:
        """The number of a constant with one element, None for other values."""
        if self.elements(name) != 1:
            return None
        array = self.array(name)
        return None if array is None else float(array.reshape(()))

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The whole numbers of a constant row of them, None for other values."""
        array = self.array(name) if name else None
        return None if array is None or array.ndim > 1 else tuple(map(int, np.atleast_1d(array)))

    def is_constant(self, name: str) -> bool:
        """Whether it is stored in the file."""
        return name in self._constants

    @property
    def constants(self) -> dict[str, TensorProto]:
        """The stored tensors by name."""
        return dict(self._constants)

    def tensor(self, name: str) -> TensorProto:
        """A constant as it is stored."""
        return self._constants[name]

    def bytes_of(self, name: str) -> int:
        """The size of a constant."""
        array = self.array(name)
        return 0 if array is None else array.nbytes

    @property
    def ir_version(self) -> int:
        """The version of the file format."""
        return int(self._model.ir_version)

    def elements(self, name: str) -> int | None:
        """How many numbers it has, None where that is not known."""
        shape = self.shape(name)
        return prod(shape) if shape is not None and all_known(shape) else None  # type: ignore[arg-type]

    def shape(self, name: str) -> tuple[Size, ...] | None:
        """What is known of the dimensions, None without even their number."""
        if name in self._constants:
            return tuple(self._constants[name].dims)
        info = self._infos.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        return tuple(
            each.dim_value if each.HasField("dim_value") and each.dim_value >= 0 else each.dim_param or None
            for each in info.type.tensor_type.shape.dim
        )

    def rank(self, name: str) -> int | None:
        """How many dimensions it has, None where that is not known."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def element_type(self, name: str) -> int | None:
        """The type of the elements by ONNX's number, None where it is not known."""
        if name in self._constants:
            return int(self._constants[name].data_type)
        info = self._infos.get(name)
        return int(info.type.tensor_type.elem_type) or None if info is not None else None

    # Changes

    def constant(self, array: np.ndarray, hint: str) -> str:
        """Store a tensor; its name, made of the hint."""
        name = self.fresh(hint)
        self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def fresh(self, hint: str) -> str:
        """A name that no value has."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}/{number}"
        self._names.add(name)
        return name

    def add(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Attributes | None = None
    ) -> OnnxNode:
        """A further node, with a name made of its result's."""
        node = OnnxNode(op, f"{outputs[0]}/{op}", inputs, outputs, "", ())
        node.set(attributes or {})
        self._enter(node)
        return node

    def read(self, node: OnnxNode, *inputs: str) -> None:
        """Give a node other operands."""
        for name in {*node.inputs} - {""}:
            self._readers[name].remove(node)
        node.inputs = inputs
        for name in {*inputs} - {""}:
            self._readers.setdefault(name, []).append(node)

    def remove(self, node: OnnxNode) -> None:
        """Take a node out; its results have no producer then."""
        self.read(node)
        del self.nodes[node]
        for name in node.outputs:
            if self._producers.get(name) is node:
                del self._producers[name]

    def redirect(self, old: str, new: str) -> None:
        """Let all nodes that read a value read another one."""
        for reader in self.readers(old):
            self.read(reader, *(new if name == old else name for name in reader.inputs))

    def bypass(self, node: OnnxNode, source: str) -> bool:
        """Take a node out whose first result is equal to `source`; False where the names of the model forbid it."""
        result, *others = node.outputs
        if any(name in self.kept or self._readers.get(name) for name in others):
            return False
        if result not in self.kept:
            self.remove(node)
            self.redirect(result, source)
            return True
        producer = self._producers.get(source)
        if source in self.kept or producer is None or result not in self.outputs or producer.graphs:
            return False
        self.remove(node)
        self.redirect(source, result)
        producer.outputs = tuple(result if name == source else name for name in producer.outputs)
        del self._producers[source]
        self._producers[result] = producer
        return True

    def make_constant(self, name: str, array: np.ndarray) -> bool:
        """Store a value in the place of computing it. False: the model gives the value out."""
        if name in self.kept:
            return False
        stored = self.constant(array, f"{name}/value")
        self.redirect(name, stored)
        return True

    def set_shape(self, name: str, shape: Sequence[Size] | None, like: str) -> None:
        """Note a value's dimensions, and that its elements are of the type of `like`."""
        if name not in self.outputs:
            self._infos.pop(name, None)
            if (element_type := self.element_type(like)) is not None:
                self._infos[name] = helper.make_tensor_value_info(name, element_type, shape)

    # Reading and writing

    def infer_shapes(self) -> None:
        """Note all shapes that follow from the operators; large constants take part by their shapes alone."""
        model = self._written(most_elements=MOST_INFERRED)
        found = shape_inference.infer_shapes(model, data_prop=True)
        self._infos |= {info.name: info for info in found.graph.value_info}

    def to_model(self) -> onnx.ModelProto:
        """The model as it is now."""
        return self._written(most_elements=None)

    def to_run(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model as it is now, with large constants as further inputs, and these; it is loaded without copying them."""
        model = self._written(most_elements=MOST_INFERRED)
        names = {info.name for info in model.graph.input} - {*self.inputs}
        return model, {name: array for name in names if (array := self.array(name)) is not None}

    def copy(self) -> "OnnxDraft":
        """The same draft, which does not change with this one."""
        other = copy.copy(self)
        other.nodes, other._producers, other._readers = {}, {}, {}
        for node in self.nodes:
            other._enter(node.copy())
        other._constants, other._infos = dict(self._constants), dict(self._infos)
        return other  # names are never used twice, so that both may share them, and what is known of constants

    def _written(self, most_elements: int | None) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph, nodes = model.graph, self.in_order()
        graph.node.extend(node.write() for node in nodes)
        read = {*self._readers_of_any(), *self.kept}
        for name, tensor in self._constants.items():
            if name not in read:
                continue
            if most_elements is None or prod(tensor.dims) <= most_elements or tensor.data_type not in FED:
                graph.initializer.append(tensor)
            else:
                graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        graph.initializer.extend(self._defaults)
        made = {*self._producers} - {*self.outputs}
        graph.value_info.extend(info for name, info in self._infos.items() if name in made)
        return model

    def _readers_of_any(self) -> Iterator[str]:
        return (name for name, readers in self._readers.items() if readers)


def all_known(shape: Sequence[Size] | None) -> bool:
    """Whether all sizes are numbers."""
    return shape is not None and all(isinstance(size, int) for size in shape)


def _without_contents(model: onnx.ModelProto) -> onnx.ModelProto:
    """The frame of a model: all but nodes, stored tensors and shapes of values."""
    frame = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(frame, field.name).extend(value)
        else:
            setattr(frame, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name in ("node", "initializer", "value_info"):
            continue
        if field.is_repeated:
            getattr(frame.graph, field.name).extend(value)
        else:
            setattr(frame.graph, field.name, value)
    return frame


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """All names that nodes and outputs inside a graph read, those of values inside it among them."""
    yield from (info.name for info in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for part in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _names_read(part)


ConversionStage = Literal["fusion", "constants"]

EXACT = 0.0
"""The same numbers are computed by the same operators."""
ROUNDING = 1e-5
"""Share of the largest output: sums of fp32 in another order, and weights that are multiplied ahead."""

NodeRewrite = Callable[[OnnxDraft, OnnxNode], bool]
"""Rewrites what begins or ends with a node; whether it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionRule:
    """One rule. `apply` rewrites the draft wherever the rule matches, and says how often it did."""

    name: str
    stage: ConversionStage
    matches: str
    writes: str
    tolerance: float
    apply: Callable[[OnnxDraft], int]


def at_each(rewrites: dict[str, NodeRewrite]) -> Callable[[OnnxDraft], int]:
    """A rule's `apply` of one rewrite for each operator of ONNX."""

    def apply(draft: OnnxDraft) -> int:
        count = 0
        for node in draft.in_order():
            if node in draft.nodes and node.standard and node.op in rewrites:
                count += rewrites[node.op](draft, node)
        return count

    return apply

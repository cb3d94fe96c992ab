"""A node of an ONNX model that is rewritten: an operator with the names of its operands and results, and its attributes."""

from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto, helper

STANDARD_DOMAINS = ("", "ai.onnx")

Attributes = Mapping[str, int | float | str | tuple[int, ...]]


class OnnxNode:
    """A node; two nodes are equal where they are the same object. An absent optional operand or result has the name ''."""

    __slots__ = ("_attributes", "domain", "inputs", "name", "op", "outputs")

    def __init__(
        self,
        op: str,
        name: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        domain: str,
        proto: Iterable[AttributeProto],
    ) -> None:
        self.op, self.name, self.domain = op, name, domain
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._attributes = {attribute.name: attribute for attribute in proto}

    @classmethod
    def read(cls, proto: onnx.NodeProto) -> "OnnxNode":
        """The node of a file."""
        return cls(proto.op_type, proto.name, proto.input, proto.output, proto.domain, proto.attribute)

    def copy(self) -> "OnnxNode":
        """The same node, which does not change with this one."""
        return OnnxNode(self.op, self.name, self.inputs, self.outputs, self.domain, self._attributes.values())

    def write(self) -> onnx.NodeProto:
        """The node for a file."""
        proto = onnx.NodeProto(op_type=self.op, name=self.name, domain=self.domain)
        proto.input.extend(self.inputs)
        proto.output.extend(self.outputs)
        proto.attribute.extend(self._attributes.values())
        return proto

    @property
    def standard(self) -> bool:
        """Whether it is one of ONNX's own operators."""
        return self.domain in STANDARD_DOMAINS

    @property
    def attributes(self) -> Mapping[str, AttributeProto]:
        """As they are stored."""
        return self._attributes

    @property
    def graphs(self) -> tuple[onnx.GraphProto, ...]:
        """The graphs inside it, such as the branches of an `If`."""
        found = self._attributes.values()
        return tuple(graph for each in found for graph in ([each.g] if each.HasField("g") else each.graphs))

    def input(self, position: int) -> str:
        """The name of an operand, '' without one."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def has(self, name: str) -> bool:
        """Whether the attribute is given."""
        return name in self._attributes

    def integer(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        return int(self._attributes[name].i) if name in self._attributes else default

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number."""
        return float(self._attributes[name].f) if name in self._attributes else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a row of whole numbers, None without it."""
        return tuple(map(int, self._attributes[name].ints)) if name in self._attributes else None

    def text(self, name: str, default: str) -> str:
        """An attribute that is text."""
        return self._attributes[name].s.decode() if name in self._attributes else default

    def set(self, values: Attributes) -> None:
        """Give some attributes other values."""
        for name, value in values.items():
            self._attributes[name] = helper.make_attribute(
                name, value, attr_type=AttributeProto.INTS if isinstance(value, tuple) else None
            )

    def drop(self, *names: str) -> None:
        """Leave attributes out."""
        for name in names:
            self._attributes.pop(name, None)

    def become(self, op: str, values: Attributes) -> None:
        """Make another operator of ONNX of it, with these attributes alone."""
        self.op, self.domain, self._attributes = op, "", {}
        self.set(values)

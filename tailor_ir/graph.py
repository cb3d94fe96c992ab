"""The IR's graph: frozen nodes over named values. Tensors live beside the graph, in a mapping from name to tensor."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tailor_ir.errors import ImportFailed, InputError

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
Tensors = dict[str, torch.Tensor]
OTHER_FLOATS = frozenset(("torch.float16", "torch.float64", "torch.bfloat16"))
NO_BATCH = -1
"""Batch axis of inputs that have none."""
GivenInputs = torch.Tensor | Sequence[torch.Tensor]
"""A batch of a network's only input, or of each of its inputs in order."""
CHANNELS_FIRST, CHANNELS_LAST = (2, 3), (1, 2)
"""Axes of height and width of images (B, C, H, W) and (B, H, W, C)."""
LOOK_UPS = frozenset(("Embedding", "Gather"))
"""Operators that take rows of a table."""
REAL_TYPES = (1, 10, 11, 16)
"""float32, float16, double and bfloat16 among ONNX's element types."""
OF_PIXELS = frozenset(("Add", "Cast", "Clip", "Div", "Identity", "Max", "Min", "Mul", "Neg", "Pow", "Sub"))
"""Operators on single pixels, with which networks scale their images before anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation. An absent optional input is the empty string."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()

    @property
    def place(self) -> str:
        """The node as refusals name it."""
        return f"operator '{self.op}' at '{self.name}'"

    def attribute(self, name: str, default: Attribute | None = None) -> Attribute | None:
        """The attribute's value, or `default` when the node does not carry it."""
        return dict(self.attributes).get(name, default)

    def ints(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """A tuple-of-integers attribute."""
        value = self.attribute(name, default)
        if not isinstance(value, tuple):
            raise self._of_other_type(name, value, "whole numbers")
        return tuple(int(v) for v in value)

    def int(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attribute(name, default)
        if not isinstance(value, int):
            raise self._of_other_type(name, value, "a whole number")
        return value

    def float(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self.attribute(name, default)
        if not isinstance(value, int | float):
            raise self._of_other_type(name, value, "a number")
        return float(value)

    def _of_other_type(self, name: str, value: object, allowed: str) -> ImportFailed:
        return ImportFailed(f"{self.place}: attribute '{name}' is {value!r}; allowed: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another producer of a value: readers of `value` may read `producer` instead. Only alternatives read `producer`.

    kind: name of the kind of variables that chooses it. choice: its name among the alternatives to the value.
    """

    kind: str
    value: str
    producer: str
    choice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A network in topological order.

    `shapes` holds the shape of every value and initializer at the traced resolution and batch size. `parameters` are the
    trainable initializers, `statistics` the running means and variances of BatchNorm, `constants` all other initializers.
    `alternatives`: the nodes that only they need come before the readers of the value. `input_types`: element type of each
    input (int64 for tokens); `given_types`: the original network's type, if it differs. `batch_axes`: the batch axis of each
    input, NO_BATCH if it has none; (): axis 0 for all inputs. `given_values`: name and element type of each input, then of each
    output, in the file that was read, "": as in the network; (): it was no file. `given_weights`: "float16" if the network that
    was read stored most of its weights so.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]
    constants: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()
    input_types: tuple[str, ...] = ()
    batch_axes: tuple[int, ...] = ()
    given_types: tuple[str, ...] = ()
    given_values: tuple[tuple[str, str], ...] = ()
    given_weights: str = ""

    def batch_axis(self, name: str) -> int:
        """The batch axis of an input; NO_BATCH for an input that all samples share."""
        return dict(zip(self.inputs, self.batch_axes, strict=False)).get(name, 0)

    @property
    def batched_input(self) -> str:
        """The first input whose batch axis is 0, else the first input with a batch."""
        batched = [name for name in self.inputs if self.batch_axis(name) != NO_BATCH]
        return next((name for name in batched if self.batch_axis(name) == 0), batched[0])

    @property
    def samples(self) -> int:
        """The traced batch size."""
        return self.shapes[self.batched_input][self.batch_axis(self.batched_input)]

    @property
    def image(self) -> str | None:
        """The input that sets the resolution: the first with height and width; None if no input has them."""
        first = (name for name in self.inputs if self.batch_axis(name) == 0)
        return next((name for name in first if len(self.shapes[name]) == 4), None)

    @property
    def sequences(self) -> tuple[str, ...]:
        """The inputs that are token sequences of one length; () for a network whose resolution an image sets."""
        first = [name for name in self.inputs if self.batch_axis(name) == 0]
        found = [name for name in first if len(self.shapes[name]) == 2 and "int" in self.input_type(name)]
        same = tuple(name for name in found if self.shapes[name] == self.shapes[found[0]])
        return () if self.image else same

    @property
    def positions(self) -> tuple[int, ...]:
        """Height and width of the first image, or the length of token sequences; else the axes after the input's features."""
        if self.sequences:
            return self.shapes[self.sequences[0]][1:]
        if self.image is None:
            sizes, batch = self.shapes[self.batched_input], self.batch_axis(self.batched_input)
            return (*sizes[:batch], *sizes[batch + 1 :])[1:]
        return tuple(self.shapes[self.image][axis] for axis in self.sides_of(self.image))

    def sides_of(self, name: str) -> tuple[int, int]:
        """The axes of an image's height and width.

        Channels are last if all readers of the image, apart from arithmetic on pixels, move them to the front.
        """
        shape, consumers = self.shapes[name], self.consumers()
        first = (shape[0], shape[3], *shape[1:3])
        pending, seen = [name], {name}
        brought = False
        while pending:
            value = pending.pop()
            readers = consumers.get(value, [])
            if value in self.outputs or not readers:
                return CHANNELS_FIRST
            for node in readers:
                given = node.outputs[0]
                if node.op in OF_PIXELS and self.shapes[given] == shape:
                    pending += {given} - seen
                    seen.add(given)
                elif self.shapes[given] == first and (
                    (node.op == "Transpose" and node.ints("perm") == (0, 3, 1, 2))
                    or (node.op == "Reshape" and shape[3] == 1)
                ):
                    brought = True
                else:
                    return CHANNELS_FIRST
        return CHANNELS_LAST if brought else CHANNELS_FIRST

    def input_type(self, name: str) -> str:
        """Element type of an input; float32 in graphs that were saved without types."""
        return dict(zip(self.inputs, self.input_types, strict=False)).get(name, "float32")

    def tokens_of(self, name: str) -> int | None:
        """Exclusive upper bound of an input's token numbers: the fewest rows of the tables that they index.

        1 if no table is indexed, since 0 is always valid. None: the input's elements are not integers.
        """
        if "int" not in self.input_type(name):
            return None
        readers = self.consumers().get(name, [])
        read = [each for node in readers if node.op in LOOK_UPS for each in node.inputs]
        return min(
            (self.shapes[each][0] for each in read if each in self.initializers and self.shapes[each]), default=1
        )

    def is_numeric(self, name: str) -> bool:
        """Whether an integer input is only read as numbers, so that any values are legal: each reader makes it real."""
        readers = self.consumers().get(name, [])
        return bool(readers) and all(node.op == "Cast" and node.int("to", 0) in REAL_TYPES for node in readers)

    def named_inputs(self, given: GivenInputs) -> Tensors:
        """Input name -> its batch, as float32 if the original network uses another type. InputError for other inputs."""
        batches = (given,) if isinstance(given, torch.Tensor) else tuple(given)
        if len(batches) != len(self.inputs):
            raise InputError(
                f"network: called with {len(batches)} inputs; allowed: {len(self.inputs)} ({', '.join(self.inputs)}), "
                "in this order"
            )
        types = self.given_types or ("",) * len(batches)
        plain = (
            b.to(torch.float32) if str(b.dtype) == f"torch.{t}" in OTHER_FLOATS else b
            for b, t in zip(batches, types, strict=True)
        )
        return dict(zip(self.inputs, plain, strict=True))

    @property
    def initializers(self) -> frozenset[str]:
        """Names of all tensors that are not computed."""
        return frozenset(self.parameters) | frozenset(self.statistics) | frozenset(self.constants)

    def norms_results(self, before: Node, norm: Node) -> bool:
        """Whether a BatchNorm has one scale per result channel of a convolution or linear map, so that it can be folded.

        BatchNorm normalises axis 1, which is the result axis of a linear map only if there are no positions.
        """
        return before.op == "Conv" or (before.op == "Linear" and len(self.shapes[norm.inputs[0]]) == 2)

    def producers(self) -> dict[str, Node]:
        """Value name -> the node that computes it."""
        return {output: node for node in self.nodes for output in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it, in order."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    users.setdefault(name, []).append(node)
        return users

    def with_nodes(self, nodes: tuple[Node, ...]) -> "Graph":
        """The same graph with other nodes; initializers without readers are dropped."""
        used = {name for node in nodes for name in node.inputs} | set(self.outputs)
        return replace(
            self,
            nodes=nodes,
            parameters=tuple(n for n in self.parameters if n in used),
            statistics=tuple(n for n in self.statistics if n in used),
            constants=tuple(n for n in self.constants if n in used),
        )

    def original(self) -> "Graph":
        """The original network: without the nodes that only alternatives need."""
        if not self.alternatives:
            return self
        return replace(self.with_nodes(needed(self.nodes, self.outputs)), alternatives=())

    def data_values(self) -> frozenset[str]:
        """Values that depend on the network's input, even if only on its number of samples."""
        data = set(self.inputs)
        for node in self.nodes:
            if any(name in data for name in node.inputs) or self._repeats_for_samples(node):
                data.update(node.outputs)
        return frozenset(data)

    def _repeats_for_samples(self, node: Node) -> bool:
        if node.op != "Expand":
            return False
        samples = self.samples
        before, after = (self.shapes[name] for name in (node.inputs[0], node.outputs[0]))
        pairs = list(zip((1,) * (len(after) - len(before)) + before, after, strict=True))
        return (1, samples) in (pairs[:1] if samples == 1 else pairs)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def needed(nodes: Sequence[Node], values: Iterable[str], known: Container[str] = ()) -> tuple[Node, ...]:
    """The nodes, in order, that compute values from known ones."""
    read, found = {name for name in values if name not in known}, []
    for node in reversed(nodes):
        if not read.isdisjoint(node.outputs):
            read.update(name for name in node.inputs if name not in known)
            found.append(node)
    return tuple(reversed(found))

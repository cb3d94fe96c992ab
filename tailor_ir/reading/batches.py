"""Find constants that depend on the batch size, by two traces of one network with different batch sizes.

A trace holds values made for its own batch: a row per sample, positions that count samples, repetitions. Comparing two
folded graphs that differ in the batch size alone reveals them; the first graph is rewritten for any batch size.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.errors import MixedSamples
from tailor_ir.reading.file_forms import has_fixed_shape, place_of
from tailor_ir.reading.folding import cleaned, is_detached

OTHER_BATCH = 5  # batch size of the second trace
# input positions of numbers that are settings, not values: their dependence on the batch follows later from the axes
SETTINGS: dict[str, tuple[int, ...]] = {
    "Expand": (1,), "Pad": (1,), "ReduceSum": (1,), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "TopK": (1,), "Unsqueeze": (1,), "CumSum": (1,), "MaxUnpool": (2,), "Trilu": (1,),
}  # fmt: skip
# operators that broadcast an operand of one row to all samples
STRETCHING = {
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Or", "Pow", "Sub",
    "Where",
}  # fmt: skip
CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
ELEMENTWISE = STRETCHING | {
    "Cast",
    "Clip",
    "Erf",
    "Gelu",
    "Identity",
    "LayerNormalization",
    "Relu",
    "Sigmoid",
    "Sqrt",
    "Tanh",
}
"""Operators whose results have the axes of their operands."""
ALLOWED = "allowed: networks that treat all samples alike, in batches of any size"


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same operator in both graphs."""

    node: gs.Node
    other: gs.Node

    def constants(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Input positions of constants that differ, with both values."""
        for position, (one, two) in enumerate(zip(self.node.inputs, self.other.inputs, strict=True)):
            if not isinstance(one, gs.Constant) or one.values is two.values:
                continue
            if not _equal(one.values, two.values):
                yield position, one.values, two.values


def may_hold_samples(graph: gs.Graph, samples: int) -> bool:
    """Whether a folded graph may hold values made for the traced batch, so that a second trace is needed."""
    computed = {id(tensor) for tensor in graph.inputs}  # tensors that depend on the network's inputs
    for node in graph.nodes:
        if any(id(operand) in computed for operand in node.inputs):
            computed.update(map(id, node.outputs))
    return any(_may_hold(node, samples, computed) for node in graph.nodes)


def _may_hold(node: gs.Node, samples: int, computed: Container[int]) -> bool:
    apart = node.inputs and node.inputs[0].inputs and node.op != "Slice" and _takes_samples_apart(node, samples)
    if apart and not _holds_features(node.inputs[0], 0, computed):
        return True
    settings = SETTINGS.get(node.op, ())
    of_weights = node.op in ("BatchNormalization", "Concat") and all(id(each) not in computed for each in node.inputs)
    for position, operand in enumerate(node.inputs):
        if not isinstance(operand, gs.Constant) or position in settings:
            continue
        if node.op == "Tile":
            return bool((operand.values % samples == 0).any())
        first, *others = (operand.shape or (1,))[: 2 if node.op in CONVOLUTIONS else None]
        if of_weights and not others:  # a bias or scale of weights, not of samples
            continue
        if (first > 0 and first % samples == 0) or samples in others:
            return True
    return False


def follow_samples(graph: gs.Graph, other: gs.Graph, samples: int, others: int) -> None:
    """Rewrite values made for the batch of `graph` so that they follow the batch. `other`: the same network, another batch.

    samples, others: batch sizes of the two graphs.
    MixedSamples: the network has other operators for another batch, or constants that differ between samples.
    """
    pairs = list(_pairs(graph, other))
    if len(pairs) != len(graph.nodes) and len(graph.nodes) != len(other.nodes):
        counts = [len(one.nodes) for one in (graph, other)]
        place = next((n for n in graph.nodes if _takes_samples_apart(n, samples)), None)
        where = f"operator '{place.op}' at '{place.name}': " if place is not None else ""
        raise MixedSamples(
            f"{where}network: {counts[0]} operators for a batch of {samples}, {counts[1]} for {others}: it goes through "
            f"the samples one by one; {ALLOWED}; write the loop as operators on the whole batch"
        )
    writer = _Writer(graph, samples, others)
    same = pairs if len(pairs) == len(graph.nodes) else []
    for pair in [pair for pair in same if pair.node.op == "Gather"]:
        writer.gathers_by_sample(pair)
    _clean(graph)
    left = {id(node) for node in graph.nodes}  # nodes that only counted samples were removed
    for pair in same:
        if id(pair.node) in left:
            writer.rewrite(pair)
    _clean(graph)


def _clean(graph: gs.Graph) -> None:
    graph.nodes[:] = [node for node in graph.nodes if node.outputs]
    cleaned(graph)


def follow_fixed_batch(graph: gs.Graph, samples: int) -> None:
    """Rewrite look-ups in a flattened value (`as_strided`) of a file with a fixed batch as look-ups within each sample."""
    writer = _Writer(graph, samples, samples)
    for node in [node for node in graph.nodes if node.op == "Gather"]:
        producer = node.inputs[0].inputs[0] if len(node.inputs[0].inputs) == 1 else None
        if producer is None or producer.op not in ("Flatten", "Reshape") or not has_fixed_shape(producer.inputs[0]):
            continue
        if list(producer.inputs[0].shape[:1]) == [samples]:
            writer.gathers_by_sample(_Pair(node, node))
    _clean(graph)


def _takes_samples_apart(node: gs.Node, samples: int) -> bool:
    if node.op not in ("Gather", "Split", "Slice") or not has_fixed_shape(node.inputs[0]):
        return False
    return node.attrs.get("axis", 0) == 0 and list(node.inputs[0].shape[:1]) == [samples]


def _holds_features(tensor: gs.Tensor, axis: int, computed: Container[int]) -> bool:
    """Whether an axis holds features of a linear layer or convolution, or a part of them: then it cannot hold samples.

    False if the operators that made the axis do not tell. computed: ids of tensors that depend on the network's inputs.
    """
    while len(tensor.inputs) == 1 and has_fixed_shape(tensor):
        node = tensor.inputs[0]
        sources = [operand for operand in node.inputs if id(operand) in computed]
        if len(sources) != 1 or not has_fixed_shape(sources[0]):
            return False
        (source,) = sources
        if node.op in ("Gemm", "MatMul") and source is node.inputs[0]:
            return axis == len(tensor.shape) - 1
        if node.op in CONVOLUTIONS and source is node.inputs[0]:
            return axis == 1
        if node.op == "Transpose":
            axis = node.attrs.get("perm", range(len(source.shape))[::-1])[axis]
        elif node.op == "Reshape":
            whole = _axis_around(tensor.shape, axis, source.shape)
            if whole is None:
                return False
            axis = whole
        elif node.op not in ELEMENTWISE or len(source.shape) != len(tensor.shape):
            return False
        tensor = source
    return False


def _axis_around(shape: Sequence[int], axis: int, source: Sequence[int]) -> int | None:
    """The axis of the source of a Reshape that holds an axis of the result, alone or with others; None if no axis does."""
    end, start = prod(shape[axis:]), prod(shape[axis + 1 :])
    for position in range(len(source)):
        outer, inner = prod(source[position:]), prod(source[position + 1 :])
        if outer % end == 0 and end <= outer and start >= inner and start % inner == 0:
            return position
    return None


def _pairs(graph: gs.Graph, other: gs.Graph) -> Iterator[_Pair]:
    """Corresponding operators of both graphs, found from the outputs backwards; the search stops if the graphs differ."""
    waiting = list(zip(graph.outputs, other.outputs, strict=False))
    seen: set[int] = set()
    while waiting:
        one, two = waiting.pop()
        if not one.inputs and not two.inputs:
            continue
        if len(one.inputs) != 1 or len(two.inputs) != 1:
            return
        node, same = one.inputs[0], two.inputs[0]
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op != same.op or len(node.inputs) != len(same.inputs) or len(node.outputs) != len(same.outputs):
            return
        if any(
            isinstance(a, gs.Constant) != isinstance(b, gs.Constant)
            for a, b in zip(node.inputs, same.inputs, strict=True)
        ):
            return
        yield _Pair(node, same)
        waiting += zip(node.inputs, same.inputs, strict=True)


@dataclass(slots=True)
class _Writer:
    """Rewrites operators of a graph. samples, others: batch sizes of the two traces."""

    graph: gs.Graph
    samples: int
    others: int
    names: dict[str, int] = field(default_factory=dict)

    def rewrite(self, pair: _Pair) -> None:
        settings = SETTINGS.get(pair.node.op, ())
        for position, value, other in list(pair.constants()):
            if position in settings:
                continue
            if pair.node.op == "Tile" and position == 1:
                self._tile(pair, value, other)
            else:
                self._repeat(pair, position, value, other)

    # -- new operators -------------------------------------------------------------------------------------------------

    def _name(self, node: gs.Node, what: str) -> str:
        base = f"{node.name or node.outputs[0].name}/{what}"
        self.names[base] = self.names.get(base, -1) + 1
        return f"{base}{self.names[base] or ''}"

    def _add(
        self,
        at: gs.Node,
        op: str,
        inputs: Sequence[gs.Tensor],
        shape: Sequence[int],
        into: gs.Tensor | None = None,
        **attrs: int,
    ) -> gs.Tensor:
        """Add an operator; `into`: existing tensor to use as its result."""
        name = self._name(at, op.lower())
        result = gs.Variable(name, inputs[0].dtype, list(shape)) if into is None else into
        self.graph.nodes.append(gs.Node(op, name, dict(attrs), list(inputs), [result]))
        return result

    def _shaped(
        self, at: gs.Node, op: str, x: gs.Tensor, shape: Sequence[int], into: gs.Tensor | None = None
    ) -> gs.Tensor:
        """Add a Reshape or Expand to a shape."""
        target = gs.Constant(self._name(at, "shape"), np.asarray(shape, np.int64))
        return self._add(at, op, [x, target], shape, into)

    # -- values with a part for each sample ------------------------------------------------------------------------------

    def _repeat(self, pair: _Pair, position: int, value: np.ndarray, other: np.ndarray) -> None:
        node = pair.node
        row, place = self._row(pair, value, other)
        stored = gs.Constant(self._name(node, "row"), np.ascontiguousarray(row))
        plain = row.ndim == value.ndim
        if plain and self._stretches(pair, position, place):
            node.inputs[position] = stored
        elif plain and node.op == "Gather" and position == 1 and is_detached(node.inputs[0], self.graph):
            self._look_up_once(node, stored, place)
        else:
            whole = [*row.shape[:place], self.samples, *row.shape[place + 1 :]]
            repeated = self._shaped(node, "Expand", stored, whole)
            node.inputs[position] = repeated if plain else self._shaped(node, "Reshape", repeated, value.shape)

    def _row(self, pair: _Pair, value: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, int]:
        """The row that all samples share, with size 1 on the sample axis, and the index of that axis.

        The row has one axis more than the value if samples are one of two factors of the value's axis.
        """
        apart = [k for k, sizes in enumerate(zip(value.shape, other.shape, strict=False)) if sizes[0] != sizes[1]]
        if value.ndim == other.ndim and len(apart) == 1:
            axis = apart[0]
            count = value.shape[axis] // self.samples
            if value.shape[axis] == count * self.samples and other.shape[axis] == count * self.others:
                for inner in (False, True):
                    pieces = [
                        _apart(v, axis, n, count, inner) for v, n in ((value, self.samples), (other, self.others))
                    ]
                    row = pieces[0].take([0], axis + inner)
                    if all(_equal(piece, np.broadcast_to(row, piece.shape)) for piece in pieces):
                        shape = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
                        return (row.reshape(shape), axis) if count == 1 else (row, axis + inner)
        raise MixedSamples(
            f"{place_of(pair.node)}: its numbers follow the batch ({_described(value)} for {self.samples} samples, "
            f"{_described(other)} for {self.others}); allowed: the same for each sample; write it for batches of any size"
        )

    def _stretches(self, pair: _Pair, position: int, axis: int) -> bool:
        """Whether an operator broadcasts one row to all samples, because another operand has the sample axis."""
        if pair.node.op not in STRETCHING:
            return False
        rank = len(pair.node.inputs[position].shape)
        sizes = (self.samples, self.others)
        for index, operands in enumerate(zip(pair.node.inputs, pair.other.inputs, strict=True)):
            if index == position or isinstance(operands[0], gs.Constant) or not all(map(has_fixed_shape, operands)):
                continue
            place = axis - rank + len(operands[0].shape)
            if place >= 0 and tuple(operand.shape[place] for operand in operands) == sizes:
                return True
        return False

    def _look_up_once(self, node: gs.Node, positions: gs.Constant, axis: int) -> None:
        """Look up rows of a weight once, and repeat the result."""
        result = node.outputs[0]
        place = node.attrs.get("axis", 0) % len(node.inputs[0].shape) + axis
        once = gs.Variable(
            self._name(node, "once"), result.dtype, [*result.shape[:place], 1, *result.shape[place + 1 :]]
        )
        node.inputs[1] = positions
        node.outputs = [once]
        self._shaped(node, "Expand", once, result.shape, into=result)

    # -- repetitions -----------------------------------------------------------------------------------------------------

    def _tile(self, pair: _Pair, repeats: np.ndarray, others: np.ndarray) -> None:
        """Rewrite a Tile by the number of samples as a new sample axis that is merged with the following axis."""
        node, result = pair.node, pair.node.outputs[0]
        x = node.inputs[0]
        axes = [k for k, (one, two) in enumerate(zip(repeats, others, strict=True)) if one != two]
        axis = axes[0]
        count = int(repeats[axis]) // self.samples
        if len(axes) > 1 or repeats[axis] != count * self.samples or others[axis] != count * self.others:
            raise MixedSamples(
                f"{place_of(pair.node)}: repeats {repeats.tolist()} times for a batch of {self.samples}; {ALLOWED}"
            )
        plain = repeats.copy()
        plain[axis] = count
        node.name = node.name or result.name
        node.outputs = []
        node.inputs = []
        if (plain != 1).any():
            sizes = [int(n * size) for n, size in zip(plain, x.shape, strict=True)]
            x = self._add(node, "Tile", [x, gs.Constant(self._name(node, "repeats"), plain)], sizes)
        apart = [*x.shape[:axis], 1, *x.shape[axis:]]
        repeated = [*x.shape[:axis], self.samples, *x.shape[axis:]]
        spread = self._shaped(node, "Expand", self._shaped(node, "Reshape", x, apart), repeated)
        self._shaped(node, "Reshape", spread, result.shape, into=result)

    # -- positions that count samples --------------------------------------------------------------------------------------

    def gathers_by_sample(self, pair: _Pair) -> bool:
        """Rewrite a look-up within each sample whose positions count samples; False for other look-ups."""
        node, other = pair.node, pair.other
        x, positions = node.inputs
        if node.attrs.get("axis", 0) != 0 or not has_fixed_shape(x) or not has_fixed_shape(other.inputs[0]):
            return False
        length = x.shape[0] // self.samples
        if (x.shape[0], other.inputs[0].shape[0]) != (length * self.samples, length * self.others):
            return False
        found = self._beside_count(positions, other.inputs[1], length)
        if found is None:
            return False
        result = node.outputs[0]
        node.name = node.name or result.name
        node.inputs, node.outputs = [], []
        rows = self._shaped(node, "Reshape", x, [self.samples, length, *x.shape[1:]])
        if isinstance(found, np.ndarray) and np.array_equal(found.reshape(-1), np.arange(length)):
            self._shaped(node, "Reshape", rows, result.shape, into=result)
        elif isinstance(found, np.ndarray):
            place = gs.Constant(self._name(node, "positions"), found[0])
            self._add(node, "Gather", [rows, place], result.shape, result, axis=1)
        else:
            self._gather_computed(node, rows, found, result)
        return True

    def _beside_count(self, positions: gs.Tensor, others: gs.Tensor, length: int) -> np.ndarray | gs.Tensor | None:
        """Positions within each sample, (1, …) or computed (B, …); None if positions do not count samples."""
        if isinstance(positions, gs.Constant) and isinstance(others, gs.Constant):
            pairs = ((positions.values, self.samples), (others.values, self.others))
            if any(not value.ndim or value.shape[0] != number for value, number in pairs):
                return None
            inside = [value - _counted(number, length, value.ndim) for value, number in pairs]
            row = inside[0][:1]
            same = all(np.array_equal(one, np.broadcast_to(row, one.shape)) for one in inside)
            return row if same and (row >= 0).all() and (row < length).all() else None
        producers = [tensor.inputs[0] if len(tensor.inputs) == 1 else None for tensor in (positions, others)]
        if any(producer is None or producer.op != "Add" for producer in producers):
            return None
        for index in (0, 1):
            counts = [producer.inputs[index] for producer in producers if producer is not None]
            if all(
                isinstance(c, gs.Constant) and np.array_equal(c.values, _counted(number, length, c.values.ndim))
                for c, number in zip(counts, (self.samples, self.others), strict=True)
            ):
                inside = producers[0].inputs[1 - index]  # type: ignore[union-attr]
                return inside if list(inside.shape or ()) == list(positions.shape) else None
        return None

    def _gather_computed(self, node: gs.Node, rows: gs.Tensor, positions: gs.Tensor, result: gs.Tensor) -> None:
        """Look up rows (B, L, …) at computed positions (B, …) within each sample."""
        rest = list(rows.shape[2:])
        count = int(np.prod(positions.shape[1:], dtype=np.int64))
        apart = self._shaped(node, "Reshape", positions, [self.samples, count, *(1,) * len(rest)])
        spread = self._shaped(node, "Expand", apart, [self.samples, count, *rest]) if rest else apart
        taken = self._add(node, "GatherElements", [rows, spread], [self.samples, count, *rest], axis=1)
        self._shaped(node, "Reshape", taken, result.shape, into=result)


def _counted(samples: int, step: int, rank: int) -> np.ndarray:
    return np.arange(samples).reshape(-1, *(1,) * (rank - 1)) * step


def _apart(value: np.ndarray, axis: int, samples: int, count: int, inner: bool) -> np.ndarray:
    pieces = (count, samples) if inner else (samples, count)
    return value.reshape(*value.shape[:axis], *pieces, *value.shape[axis + 1 :])


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=bool(np.issubdtype(one.dtype, np.inexact)))


def _described(value: np.ndarray) -> str:
    return str(value.tolist()) if value.size <= 6 else "×".join(map(str, value.shape))

"""Writes into a part of a tensor, which exporters express as ScatterND or ScatterElements with a position per element.

Writes at constant positions become slices, concatenations and look-ups, whose axes are known.

Reads at positions along several axes (GatherND of exporters), rewritten as a look-up along one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.dims import from_begin
from tailor_ir.reading.file_forms import Builder, has_fixed_shape

WrittenPlaces = tuple[np.ndarray, ...]
"""Positions along each axis; all their combinations are written."""
JOINS = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
"""Name of a reduction -> the operator that combines new and old values; "" replaces the old values."""
REDUCTIONS = {"Add": "ReduceSum", "Mul": "ReduceProd", "Max": "ReduceMax", "Min": "ReduceMin"}
NEUTRAL = {"Add": 0, "Mul": 1}
FIRST_OPEN_AXES = 18  # first opset in which all reductions take their axes as an operand
KEEPING_AXES = frozenset(
    ("Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Pad", "ScatterElements", "ScatterND", "Slice", "Where")
)  # results have the axes of the first operand


def write_block(graph: gs.Graph, node: gs.Node) -> bool:
    """Rewrite a write at constant positions as operators without a position per element; a full write becomes its value.

    False if positions differ between samples, replace one place twice, or are not constant, or if shapes are unknown.
    """
    data, positions, value = node.inputs
    reduction = str(node.attrs.get("reduction", "none"))
    if not isinstance(positions, gs.Constant) or not all(map(has_fixed_shape, (data, value))) or reduction not in JOINS:
        return False
    found = _write(node, positions.values, JOINS[reduction])
    if found is None:
        return False
    builder = _Builder(graph, node)
    builder.finish(node, found.build(builder))
    return True


class _Builder(Builder):
    """Adds nodes that take tensors apart and join parts."""

    def numbers(self, values: int | Sequence[int] | np.ndarray, dtype: object = np.int64) -> gs.Constant:
        return self.constant(values, dtype)

    def reshape(self, x: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        return x if tuple(x.shape) == tuple(shape) else super().reshape(x, shape)

    def join(self, parts: Sequence[gs.Tensor], axis: int) -> gs.Tensor:
        """Concatenate the parts along an axis, without empty ones."""
        real = [part for part in parts if part.shape[axis]]
        shape = list(real[0].shape)
        shape[axis] = sum(part.shape[axis] for part in real)
        return real[0] if len(real) == 1 else self.add("Concat", real, shape, axis=axis)

    def cut(self, x: gs.Tensor, axis: int, start: int, stop: int, step: int = 1) -> gs.Tensor:
        shape = list(x.shape)
        shape[axis] = len(range(x.shape[axis])[start:stop:step])
        if shape[axis] == x.shape[axis] or not shape[axis]:
            return x if shape[axis] else gs.Variable("", self.dtype, shape)
        operands = [self.numbers([number]) for number in (start, stop, axis, *((step,) if step > 1 else ()))]
        return self.add("Slice", [x, *operands], shape)

    def reduce(self, op: str, x: gs.Tensor, axis: int) -> gs.Tensor:
        shape = [*x.shape[:axis], *x.shape[axis + 1 :]]
        if op == "ReduceSum" or self.graph.opset >= FIRST_OPEN_AXES:
            return self.add(op, [x, self.numbers([axis])], shape, keepdims=0)
        return self.add(op, [x], shape, axes=[axis], keepdims=0)

    def take(self, x: gs.Tensor, places: WrittenPlaces) -> gs.Tensor:
        """The part of x at the places."""
        for axis, places_along in enumerate(places):
            step = _step(places_along)
            if step:
                x = self.cut(x, axis, int(places_along[0]), int(places_along[-1]) + 1, step)
            else:
                shape = [*x.shape[:axis], len(places_along), *x.shape[axis + 1 :]]
                x = self.add("Gather", [x, self.numbers(places_along)], shape, axis=axis)
        return x


@dataclass(frozen=True, slots=True)
class _Write:
    """Write `value` (with the shape given by `places`) into `data`, viewed as a tensor of `shape`.

    join: the operator that combines new and old values; "" replaces the old values.
    """

    data: gs.Tensor
    value: gs.Tensor
    shape: tuple[int, ...]
    places: WrittenPlaces
    join: str

    def build(self, builder: _Builder) -> gs.Tensor:
        whole = tuple(self.data.shape)
        data = builder.reshape(self.data, self.shape)
        value = builder.reshape(self.value, [len(along) for along in self.places])
        places = list(self.places)
        for axis, along in enumerate(places):
            if _repeats(along):
                value, places[axis] = _joined(builder, value, axis, along, self.join)
        if self.join:
            value = builder.add(self.join, [builder.take(data, tuple(places)), value], value.shape)
        for axis, size in enumerate(self.shape):  # grow the block to the whole tensor, one axis after the other
            if not _is_all(places[axis], size):
                along, places[axis] = places[axis], np.arange(size)
                value = _grown(builder, builder.take(data, tuple(places)), value, axis, along)
        return builder.reshape(value, whole)


def _joined(
    builder: _Builder, value: gs.Tensor, axis: int, along: np.ndarray, join: str
) -> tuple[gs.Tensor, np.ndarray]:
    """Combine the values that are written to the same place; returns the values and their distinct places."""
    places, owner, counts = np.unique(along, return_inverse=True, return_counts=True)
    most, starts = int(counts.max()), np.cumsum(counts) - counts
    order = np.argsort(owner, kind="stable")
    rows = np.repeat(order[starts][:, None], most, axis=1)  # repeating a value does not change Max or Min
    if join in NEUTRAL and counts.min() < most:
        value = _padded(builder, value, axis, 1, NEUTRAL[join])
        rows[:] = len(along)
    rows[owner[order], np.arange(len(order)) - np.repeat(starts, counts)] = order
    shape = [*value.shape[:axis], len(places), most, *value.shape[axis + 1 :]]
    together = builder.add("Gather", [value, builder.numbers(rows)], shape, axis=axis)
    return builder.reduce(REDUCTIONS[join], together, axis + 1), places


def _grown(builder: _Builder, around: gs.Tensor, value: gs.Tensor, axis: int, places: np.ndarray) -> gs.Tensor:
    """`around` with `value` at the places along an axis."""
    size, step, start = around.shape[axis], _step(places), int(places[0])
    if step == 0:
        order = np.arange(size)
        order[places] = size + np.arange(len(places))
        both = builder.join([around, value], axis)
        return builder.add("Gather", [both, builder.numbers(order)], around.shape, axis=axis)
    if step == 1:
        stop = start + len(places)
        return builder.join([builder.cut(around, axis, 0, start), value, builder.cut(around, axis, stop, size)], axis)
    length = len(places) * step
    first = max(min(start, size - length), 0)
    pieces = [
        builder.cut(around, axis, *bounds) for bounds in ((0, first), (first, first + length), (first + length, size))
    ]
    beyond = length - pieces[1].shape[axis]
    if beyond:
        pieces[1] = _padded(builder, pieces[1], axis, beyond)
    pieces[1] = _every(builder, pieces[1], value, axis, start - first, step)
    return builder.cut(builder.join(pieces, axis), axis, 0, size)


def _every(builder: _Builder, around: gs.Tensor, value: gs.Tensor, axis: int, offset: int, step: int) -> gs.Tensor:
    """`around` with element `offset` of each group of `step` along an axis replaced by `value`."""
    before, count, after = around.shape[:axis], value.shape[axis], around.shape[axis + 1 :]
    apart = builder.reshape(around, (*before, count, step, *after))
    own = builder.reshape(value, (*before, count, 1, *after))
    sides = [builder.cut(apart, axis + 1, *bounds) for bounds in ((0, offset), (offset + 1, step))]
    return builder.reshape(builder.join([sides[0], own, sides[1]], axis + 1), around.shape)


def _padded(builder: _Builder, x: gs.Tensor, axis: int, count: int, fill: int = 0) -> gs.Tensor:
    """x with `count` more entries at the end of an axis."""
    rank = len(x.shape)
    pads = [0] * 2 * rank
    pads[rank + axis] = count
    shape = [size + (count if i == axis else 0) for i, size in enumerate(x.shape)]
    filler = [builder.numbers(fill, x.dtype)] if fill else []
    return builder.add("Pad", [x, builder.numbers(pads), *filler], shape)


def _step(places: np.ndarray) -> int:
    """The distance of evenly ascending places; 0 for other places."""
    if len(places) == 1:
        return 1
    step = int(places[1]) - int(places[0])
    return step if step > 0 and bool((np.diff(places) == step).all()) else 0


def _repeats(along: np.ndarray) -> bool:
    return len(np.unique(along)) != len(along)


def _is_all(places: np.ndarray, size: int) -> bool:
    return np.array_equal(places, np.arange(size))


def _write(node: gs.Node, index: np.ndarray, join: str) -> _Write | None:
    """The write of a scatter node; None if it is no block, differs between samples, or replaces a place twice."""
    data, _, value = node.inputs
    shape = tuple(data.shape)
    samples = _samples_axis(value if isinstance(data, gs.Constant) else data) % len(shape)
    if node.op == "ScatterElements":
        axis = int(node.attrs.get("axis", 0)) % len(shape)
        places = _along_axis(index, shape, axis)
        if places is None and join in ("Max", "Min", "Mul"):  # the IR's ScatterElements lacks these reductions
            entries = np.indices(index.shape)
            entries[axis] = from_begin(index, shape[axis])
            shape, places, samples = _flattened(list(entries), shape, samples)
    else:
        coordinates = coordinates_of(index, shape)
        places = _product(coordinates, shape)
        if places is None:
            shape, places, samples = _flattened(coordinates, shape, samples)
    if places is None or (not join and any(map(_repeats, places))):
        return None
    if not _is_all(places[samples], shape[samples]):
        return None
    return _Write(data, value, shape, places, join)


def _along_axis(index: np.ndarray, shape: tuple[int, ...], axis: int) -> WrittenPlaces | None:
    """Places of entries whose position along an axis does not depend on the other axes; None for other entries."""
    along = np.moveaxis(index, axis, -1).reshape(-1, index.shape[axis])
    if not len(along) or not (along == along[0]).all():
        return None
    first = np.where(along[0] < 0, along[0] + shape[axis], along[0])
    return tuple(first if i == axis else np.arange(size) for i, size in enumerate(index.shape))


def _product(coordinates: Sequence[np.ndarray], shape: tuple[int, ...]) -> WrittenPlaces | None:
    """Places along each axis if the coordinates are all their combinations, in order; None for other coordinates."""
    depth = len(coordinates)
    if coordinates[0].ndim != depth:
        return None
    places = []
    for axis, part in enumerate(coordinates):
        along = np.moveaxis(part, axis, -1).reshape(-1, part.shape[axis])
        if not len(along) or not (along == along[0]).all():
            return None
        places.append(along[0])
    return (*places, *map(np.arange, shape[depth:]))


def coordinates_of(index: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Positions along each of the first axes, counted from the beginning."""
    parts = zip(np.moveaxis(index, -1, 0), shape, strict=False)
    return [from_begin(part, size) for part, size in parts]


def _samples_axis(x: gs.Tensor) -> int:
    """The sample axis: the first axis, unless a Transpose or Reshape moved it."""
    if not x.inputs:
        return 0
    producer = x.inputs[0]
    source = next((i for i in producer.inputs if isinstance(i, gs.Variable)), None)
    if source is None or not has_fixed_shape(source) or not has_fixed_shape(x):
        return 0
    if producer.op == "Transpose":
        order = producer.attrs.get("perm", range(len(x.shape))[::-1])
        return list(order).index(_samples_axis(source))
    if producer.op == "Reshape":
        place = _samples_axis(source)
        size, before = source.shape[place], prod(source.shape[:place])
        return next((i for i, n in enumerate(x.shape) if n == size and prod(x.shape[:i]) == before), 0)
    return _samples_axis(source) if producer.op in KEEPING_AXES and len(source.shape) == len(x.shape) else 0


def _flattened(
    coordinates: Sequence[np.ndarray], shape: tuple[int, ...], samples: int
) -> tuple[tuple[int, ...], WrittenPlaces | None, int]:
    """The shape with all indexed axes but the sample axis merged; places in it, None if they differ; the sample axis."""
    depth = len(coordinates)
    if samples >= depth:  # positions do not index samples
        flat = (prod(shape[:depth]), *shape[depth:])
        everywhere = np.ravel_multi_index(tuple(coordinates), shape[:depth]).reshape(-1)
        return flat, (everywhere, *map(np.arange, shape[depth:])), samples - depth + 1
    count, inner = shape[0], prod(shape[1:depth])
    flat = (count, inner, *shape[depth:])
    if samples or depth < 2:
        return flat, None, samples
    linear = linear_within_samples(coordinates, shape)
    return flat, None if linear is None else (np.arange(count), linear, *map(np.arange, shape[depth:])), samples


def linear_within_samples(coordinates: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray | None:
    """Positions in one flattened sample; None if they differ between samples, or the first axis does not count samples."""
    samples = shape[0]
    if coordinates[0].size % samples:
        return None
    first, *others = [part.reshape(samples, -1) for part in coordinates]
    if not (first == np.arange(samples)[:, None]).all():
        return None
    linear = np.ravel_multi_index(tuple(others), shape[1 : len(coordinates)])
    return linear[0] if (linear == linear[0]).all() else None


def read_block(graph: gs.Graph, node: gs.Node) -> bool:
    """Rewrite a GatherND as a Gather, or as a Reshape if it reads everything in order (masks by sample and position).

    Computed positions have to be concatenated with sample indices. False for other nodes, or if shapes are unknown.
    """
    data, positions = node.inputs
    if not isinstance(positions, gs.Constant):
        return _read_by_sample(graph, node)
    if not positions.values.size or not has_fixed_shape(data):
        return False
    shape, index = tuple(data.shape), positions.values
    shared = int(node.attrs.get("batch_dims", 0))  # leading axes that data and positions share
    within = coordinates_of(index, shape[shared:])
    own = np.indices(within[0].shape, sparse=True)[:shared]
    coordinates = np.broadcast_arrays(*own, *within)
    places, depth = coordinates[0].shape, len(coordinates)
    rest = shape[depth:]
    b = Builder(graph, node)
    row = linear_within_samples(coordinates, shape) if depth > 1 and places[0] == shape[0] else None
    axis = 0 if row is None else 1
    linear = np.ravel_multi_index(coordinates, shape[:depth]) if row is None else row.reshape(places[1:])
    inner = prod(shape[axis:depth])
    flat = (*shape[:axis], inner, *rest)
    source = data if flat == shape else b.reshape(data, flat)
    if np.array_equal(linear.reshape(-1), np.arange(inner)):
        result = b.reshape(source, (*places, *rest))
    else:
        result = b.add("Gather", [source, b.constant(linear, np.int64)], (*places, *rest), axis=axis)
    b.finish(node, result)
    return True


def _read_by_sample(graph: gs.Graph, node: gs.Node) -> bool:
    """Look-ups at computed positions along the second axis, within each sample."""
    data, positions = node.inputs
    places = _beside_counts(positions, data)
    if places is None or node.attrs.get("batch_dims", 0):
        return False
    samples, length, *rest = data.shape
    _, *many, _ = places.shape
    count, ones = prod(many), (1,) * len(rest)
    b = Builder(graph, node)
    b.dtype = np.dtype(np.int64)
    within = b.add("Mod", [places, b.constant(length)], places.shape)  # positions may count from the end
    within = b.reshape(within, (samples, count, *ones))
    if rest:
        wide = (samples, count, *rest)
        within = b.add("Expand", [within, b.constant(wide)], wide)
    b.dtype = data.dtype
    taken = b.add("GatherElements", [data, within], within.shape, axis=1)
    b.finish(node, b.reshape(taken, (samples, *many, *rest)))
    return True


def _beside_counts(positions: gs.Tensor, data: gs.Tensor) -> gs.Tensor | None:
    """Positions that are concatenated with sample indices to pairs (B, …, 2); None for other positions."""
    producer = positions.inputs[0] if positions.inputs else None
    if (
        producer is None
        or producer.op != "Concat"
        or len(producer.inputs) != 2
        or not all(map(has_fixed_shape, (*producer.inputs, data)))
    ):
        return None
    counts, places = producer.inputs
    rank = len(places.shape)
    if (
        rank < 2
        or places.shape[-1] != 1
        or producer.attrs["axis"] % rank != rank - 1
        or not isinstance(counts, gs.Constant)
    ):
        return None
    counted = np.arange(data.shape[0]).reshape(-1, *(1,) * (rank - 1))
    return places if np.array_equal(counts.values, np.broadcast_to(counted, places.shape)) else None

"""Operators that move elements: reshapes that split and merge axes, slices, joins, look-ups."""

import numpy as np

from tests.fuzzing.drafts import Draft, Unfit, Value
from tests.fuzzing.recipes.record import Make, Recipe


def _of_rank(draft: Draft, *ranks: int) -> Value:
    return draft.pick(lambda v: v.kind == "float32" and v.plain and v.rank in ranks)


def _divisor(draft: Draft, size: int) -> int:
    """A divisor between one and all."""
    found = [n for n in (2, 3, 4, 5, 6, 8) if size % n == 0 and n < size]
    if not found:
        raise Unfit
    return int(draft.choose(found))


def _axis(draft: Draft, value: Value) -> int:
    """Any axis but the batch, now and then counted from the end."""
    return int(draft.rng.integers(1, value.rank))


def _signed(draft: Draft, axis: int, rank: int) -> int:
    return axis - rank if draft.chance(0.4) else axis


def _split_axis(draft: Draft) -> Value:
    """One axis as two; they may change places and become one again: a shuffle."""
    value = _of_rank(draft, 2, 3, 4)
    axis = _axis(draft, value)
    outer = _divisor(draft, value.shape[axis])
    sizes = [*value.target[:axis], outer, value.shape[axis] // outer, *value.target[axis + 1 :]]
    apart = draft.reshape(value.name, sizes)
    if draft.chance(0.4):
        return apart
    order = [*range(axis), axis + 1, axis, *range(axis + 2, apart.rank)]
    turned = draft.transpose(apart.name, *order)
    return draft.reshape(turned.name, value.target) if draft.chance(0.7) else turned


def _merge_axes(draft: Draft) -> Value:
    """Two axes side by side as one, or an axis joined to the batch and apart again."""
    value = _of_rank(draft, 3, 4, 5)
    if draft.chance(0.3):  # into the batch
        joined = draft.reshape(value.name, [-1, *value.shape[2:]])
        if joined.rank > 1 and draft.chance(0.6):
            joined = draft.linear(joined, joined.shape[-1])
        return draft.reshape(joined.name, [-1, *value.shape[1:]])
    axis = int(draft.rng.integers(1, value.rank - 1))
    return draft.reshape(value.name, [*value.target[:axis], -1, *value.target[axis + 2 :]])


def _reinterpreted(draft: Draft) -> Value:
    """Sizes that do not nest, as in relative shifts: (a, b) as (b, a), or with other factors."""
    value = _of_rank(draft, 3, 4)
    *kept, rows, columns = value.target
    if -1 in (rows, columns) or rows * columns > 2048:
        raise Unfit
    if draft.chance(0.5):
        return draft.reshape(value.name, [*kept, columns, rows])
    inner = _divisor(draft, rows * columns)
    return draft.reshape(value.name, [*kept, inner, rows * columns // inner])


def _computed_reshape(draft: Draft) -> Value:
    """The target is made of the value's own shape, as exporters write it."""
    value = _of_rank(draft, 3, 4)
    shape = draft.raw("Shape", value.name)
    batch = draft.raw(
        "Unsqueeze", f"{draft.raw('Gather', f'{shape} {draft.constant(0)}', axis=0)} {draft.constant([0])}"
    )
    middle = [value.shape[1]] if draft.chance(0.6) and value.rank == 4 else []
    target = draft.raw("Concat", f"{batch} {draft.constant([*middle, -1])}", axis=0)
    rest = int(np.prod(value.shape[1 + len(middle) :]))
    return draft.known("Reshape", f"{value.name} {target}", (*middle, rest))


def _flatten(draft: Draft) -> Value:
    value = _of_rank(draft, 3, 4, 5)
    if np.prod(value.shape[1:]) > 1024:
        raise Unfit
    return draft.one("Flatten", value.name, axis=1)


def _transpose(draft: Draft) -> Value:
    value = _of_rank(draft, 3, 4, 5)
    order = [0, *(int(a) + 1 for a in draft.rng.permutation(value.rank - 1))]
    return draft.transpose(value.name, *order)


def _channels_last(draft: Draft) -> Value:
    """An image with its channels last, something of them, and back."""
    value = draft.spatial(1)
    last = draft.transpose(value.name, 0, 2, 3, 1)
    found = draft.linear(last, value.shape[1]) if draft.chance(0.6) else draft.one("Relu", last.name)
    return draft.transpose(found.name, 0, 3, 1, 2)


def _squeeze(draft: Draft) -> Value:
    """An axis of one element, made and dropped; without axes all of them are."""
    value = draft.any()
    axis = int(draft.rng.integers(1, value.rank + 1))
    wide = draft.by_axes("Unsqueeze", value.name, [axis])
    if draft.chance(0.4):
        wide = draft.one("Tanh", wide.name)
    if draft.chance(0.1) and 1 not in value.shape[1:]:
        return draft.one("Squeeze", wide.name)
    return draft.by_axes("Squeeze", wide.name, [_signed(draft, axis, value.rank + 1)])


def _expand(draft: Draft) -> Value:
    """A value along a new axis, or a row for all positions."""
    value = _of_rank(draft, 2, 3)
    wide = draft.by_axes("Unsqueeze", value.name, [1])
    sizes = [1, int(draft.choose((2, 3, 8))), *(1,) * (value.rank - 1)]
    return draft.one("Expand", f"{wide.name} {draft.constant(sizes)}")


def _class_token(draft: Draft) -> Value:
    """A learned token in front of each sample's, and learned positions."""
    value = draft.sequence()
    token = draft.weight(1, 1, value.shape[2], letter="b")
    first = draft.by_axes("ReduceMean", value.name, [1], 18, keepdims=1)
    zero = draft.one("Mul", f"{first.name} {draft.constant(0.0)}")
    spread = draft.one("Add", f"{zero.name} {token}")
    found = draft.one("Concat", f"{spread.name} {value.name}", axis=1)
    if draft.chance(0.7):
        found = draft.one("Add", f"{found.name} {draft.weight(1, found.shape[1], found.shape[2], letter='b')}")
    if draft.chance(0.4):
        return draft.one("Gather", f"{found.name} {draft.constant(0)}", axis=1)
    return found


def _tile(draft: Draft) -> Value:
    value = _of_rank(draft, 2, 3, 4)
    if np.prod(value.shape[1:]) > 1024:
        raise Unfit
    repeats = [1] * value.rank
    repeats[_axis(draft, value)] = int(draft.choose((2, 3)))
    return draft.one("Tile", f"{value.name} {draft.constant(repeats)}")


def _concat(draft: Draft) -> Value:
    """Two or three values that differ in one axis at most."""
    value = _of_rank(draft, 2, 3, 4)
    axis = 1 if draft.chance(0.7) else _axis(draft, value)
    fitting = [
        v for v in draft.values
        if v.kind == "float32" and v.plain and v.rank == value.rank
        and all(a == b for i, (a, b) in enumerate(zip(v.shape, value.shape, strict=True)) if i != axis)
    ]  # fmt: skip
    names = [value.name, *(draft.choose(fitting).name for _ in range(int(draft.choose((1, 1, 2)))))]
    return draft.one("Concat", " ".join(names), axis=_signed(draft, axis, value.rank))


def _slice(draft: Draft) -> Value:
    """A range, in steps of one, more, or back."""
    value = _of_rank(draft, 2, 3, 4)
    axis = _axis(draft, value)
    size = value.shape[axis]
    if size < 3:
        raise Unfit
    start, stop = sorted(int(v) for v in draft.rng.choice(size + 1, 2, replace=False))
    step = int(draft.choose((1, 1, 1, 2, -1)))
    if draft.chance(0.4):
        start, stop = draft.choose(((0, size // 2), (size // 2, size), (1, size), (0, size - 1)))
    if step < 0:
        start, stop = size - 1, -size - 1
    if stop == size and draft.chance(0.5):
        stop = 2**63 - 1 if draft.chance(0.5) else 2**31 - 1
    numbers = ([start], [stop], [_signed(draft, axis, value.rank)], [step])
    kept = numbers if step != 1 or draft.chance(0.5) else numbers[:3]
    return draft.one("Slice", " ".join([value.name, *map(draft.constant, kept)]))


def _roll(draft: Draft) -> Value:
    value = _of_rank(draft, 2, 3, 4)
    axis = _axis(draft, value)
    size = value.shape[axis]
    if size < 2:
        raise Unfit
    shift = int(draft.rng.integers(1, size))
    tail = draft.one("Slice", " ".join([value.name, *map(draft.constant, ([shift], [2**63 - 1], [axis]))]))
    head = draft.one("Slice", " ".join([value.name, *map(draft.constant, ([0], [shift], [axis]))]))
    return draft.one("Concat", f"{tail.name} {head.name}", axis=axis)


def _split(draft: Draft) -> Value:
    """Pieces of an axis, some of which are used: joined in another order, added, or as a gate."""
    value = _of_rank(draft, 2, 3, 4)
    axis = 1 if draft.chance(0.6) else _axis(draft, value)
    size = value.shape[axis]
    if size < 2:
        raise Unfit
    count = int(draft.choose([n for n in (2, 3, 4) if n <= size]))
    even = size % count == 0 and draft.chance(0.7)
    sizes = [size // count] * count if even else _sizes(draft, size, count)
    attributes = {"axis": axis}
    inputs = f"{value.name} {draft.constant(sizes)}"
    if even and draft.chance(0.3):
        inputs = value.name
        if draft.opset >= 18:
            attributes["num_outputs"] = count
    pieces = draft.add("Split", inputs, count, **attributes)
    way = int(draft.rng.integers(3))
    if way == 0 and even:
        gate = draft.one("Sigmoid", pieces[1].name)
        return draft.one("Mul", f"{pieces[0].name} {gate.name}")
    if way == 1:
        order = [pieces[int(i)].name for i in draft.rng.permutation(count)]
        return draft.one("Concat", " ".join(order), axis=axis)
    return draft.choose(pieces)


def _sizes(draft: Draft, size: int, count: int) -> list[int]:
    """Sizes of pieces that are not all equal."""
    places = sorted(int(v) for v in draft.rng.choice(np.arange(1, size), count - 1, replace=False))
    return [b - a for a, b in zip([0, *places], [*places, size], strict=True)]


def _two_samples(draft: Draft) -> Value:
    """Two values through the same layer, as one batch of twice as many samples."""
    value = _of_rank(draft, 2, 3, 4)
    both = draft.one("Concat", f"{value.name} {draft.one('Neg', value.name).name}", axis=0)
    found = draft.linear(both, draft.width())
    pieces = draft.add("Split", found.name, 2, axis=0, **({"num_outputs": 2} if draft.opset >= 18 else {}))
    return draft.one(draft.choose(("Add", "Sub", "Mul")), f"{pieces[0].name} {pieces[1].name}")


def _gather(draft: Draft) -> Value:
    """Entries at known positions: one, some, in another order, or windows."""
    value = _of_rank(draft, 2, 3, 4)
    axis = _axis(draft, value)
    size = value.shape[axis]
    way = int(draft.rng.integers(4))
    if way == 0:
        positions: object = int(draft.choose((0, size - 1, -1, size // 2)))
    elif way == 1:
        positions = [int(p) for p in draft.rng.permutation(size)]
    elif way == 2:
        positions = sorted(int(p) for p in draft.rng.integers(0, size, min(size, 4)))
    else:
        positions = [[i + j for j in range(size - 1)] for i in range(2)] if size > 2 else [0]
    if value.rank > 3 and way == 3:
        raise Unfit
    return draft.one("Gather", f"{value.name} {draft.constant(positions)}", axis=_signed(draft, axis, value.rank))


def _bias_table(draft: Draft) -> Value:
    """A learned table, looked up at constant positions and added, as biases of relative positions are."""
    value = _of_rank(draft, 3)
    rows, columns = value.shape[1:]
    if rows * columns > 1024:
        raise Unfit
    table = draft.weight(rows + columns - 1, 1, letter="b")
    positions = [[i - j + columns - 1 for j in range(columns)] for i in range(rows)]
    found = draft.one("Gather", f"{table} {draft.constant(positions)}", axis=0)
    return draft.one("Add", f"{value.name} {draft.by_axes('Squeeze', found.name, [2]).name}")


def _largest(draft: Draft) -> Value:
    value = _of_rank(draft, 2, 3, 4)
    axis = _axis(draft, value)
    count = draft.constant([min(value.shape[axis], int(draft.choose((1, 2, 3))))])
    more = {"largest": 0} if draft.chance(0.3) else {}
    values, positions = draft.add("TopK", f"{value.name} {count}", 2, axis=_signed(draft, axis, value.rank), **more)
    if draft.chance(0.3):
        return draft.one("Cast", positions.name, to=1)
    if draft.chance(0.3):
        return draft.one("GatherElements", f"{value.name} {positions.name}", axis=axis)
    return values


def _entries(draft: Draft) -> Value:
    """Entries by computed positions, read or written."""
    value = _of_rank(draft, 2, 3)
    axis = _axis(draft, value)
    count = draft.constant([min(2, value.shape[axis])])
    values, positions = draft.add("TopK", f"{value.name} {count}", 2, axis=axis)
    if draft.chance(0.3):  # from the end
        positions = draft.one("Sub", f"{positions.name} {draft.constant(value.shape[axis])}")
    if draft.chance(0.5):
        return draft.one("GatherElements", f"{value.name} {positions.name}", axis=axis)
    halved = draft.one("Mul", f"{values.name} {draft.constant(0.5)}")
    add = {"reduction": "add"} if draft.opset >= 16 and draft.chance(0.4) else {}
    return draft.one("ScatterElements", f"{value.name} {positions.name} {halved.name}", axis=axis, **add)


def _extreme(op: str) -> Make:
    def make(draft: Draft) -> Value:
        value = _of_rank(draft, 2, 3, 4)
        axis = _axis(draft, value)
        more = {"select_last_index": 1} if draft.chance(0.3) else {}
        found = draft.one(
            op, value.name, axis=_signed(draft, axis, value.rank), keepdims=int(draft.chance(0.5)), **more
        )
        return draft.one("Cast", found.name, to=1)

    return make


RECIPES = (
    Recipe("split of an axis", _split_axis, ("Reshape", "Transpose"), share=2.0),
    Recipe("merged axes", _merge_axes, ("Reshape", "Linear"), share=1.5),
    Recipe("reinterpretation", _reinterpreted, ("Reshape",), share=0.8),
    Recipe("computed reshape", _computed_reshape, ("Reshape",)),
    Recipe("Flatten", _flatten, ("Flatten", "Reshape")),
    Recipe("Transpose", _transpose, ("Transpose",)),
    Recipe("channels last", _channels_last, ("Transpose", "Linear")),
    Recipe("Squeeze", _squeeze, ("Squeeze", "Unsqueeze")),
    Recipe("Expand", _expand, ("Expand", "Unsqueeze")),
    Recipe("class token", _class_token, ("Concat", "Gather")),
    Recipe("Tile", _tile, ("Tile",), share=0.6),
    Recipe("Concat", _concat, ("Concat",), share=3.0),
    Recipe("Slice", _slice, ("Slice",), share=1.5),
    Recipe("Roll", _roll, ("Roll", "Split", "Concat"), share=0.6),
    Recipe("Split", _split, ("Split", "Concat"), share=2.0),
    Recipe("two samples", _two_samples, ("Concat", "Split", "Linear"), share=0.4),
    Recipe("Gather", _gather, ("Gather",), share=1.5),
    Recipe("table of biases", _bias_table, ("Gather", "Add", "Squeeze"), share=0.5),
    Recipe("TopK", _largest, ("TopK", "GatherElements"), share=0.5),
    Recipe("entries", _entries, ("GatherElements", "ScatterElements", "TopK"), 16, 0.5),
    *(Recipe(op, _extreme(op), (op, "Cast"), share=0.3) for op in ("ArgMax", "ArgMin")),
)

"""The steps of all SubNets as arrays over few variables, and lower bounds of the activations' memory at each moment.

`tailor_ir.memory.lifetimes` walks through the arrays. The bounds are sums of small tables, by which exact search
prunes.

A moment is the time while one step runs. At that moment memory holds three groups of tensors: tensors that the step
reads, tensors that the step newly writes, and tensors that wait for a later step. A waiting tensor counts if the later
step runs in every SubNet in which the present step runs.

If the order of steps is open, a tensor counts as waiting only if it waits in every order: the present step needs the
tensor, or a value made from it, and the later step needs a result of the present step. If a value has several
producers, a step needs only the values that all of them need.

The true peak comes from the walk through whole SubNets. The walk also counts buffers that are held between two tensors
of the same shape, and tensors that wait for a step of some SubNets only. Therefore no moment exceeds the peak of the
walk.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import and_

import numpy as np

from solvers.tables import Derived, Table, Values, spread, total
from tailor_ir.axes import FLOAT_BYTES, Axis
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules, in_blocks, laid_out, patches_bytes, read_as, stored_shape
from tailor_ir.memory.planning import find_steps
from tailor_ir.memory.steps import Steps
from tailor_ir.spaces.presence import Presence, Variables
from tailor_ir.spaces.space import Grids, Structure

Key = tuple[int, ...]  # bytes of an element, then the shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTerm:
    """A value as arrays over the choices of its `variables` (columns of choice indices), one axis for each variable.

    bytes_: bytes in memory. shapes: a number for each shape, including padding; equal shapes have equal numbers. stored: a
    number for each stored shape. blocked: whether channels are stored in blocks. temporary: the value only exists during one
    step and shares its memory with no other value.
    """

    variables: Variables
    bytes_: np.ndarray
    shapes: np.ndarray
    stored: np.ndarray
    blocked: np.ndarray
    temporary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerm:
    """A step; reads, writes and in_place are positions in `MemoryTerms.values`. present: the SubNets that run it."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...]
    view: bool
    relayout: bool
    present: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """The steps of all SubNets.

    sources: value with several producers -> its producers, each with the SubNets in which it is chosen. inputs, outputs: values
    of the network. same_shape: as `Rules.reuses`. planned: as `Rules.planned`. derived: derived columns of extended codes
    (`Space`).
    """

    values: tuple[ValueTerm, ...]
    steps: tuple[StepTerm, ...]
    sources: Mapping[int, tuple[tuple[int, Presence], ...]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    same_shape: bool
    planned: bool = False
    derived: tuple[Derived, ...] = ()


def memory_terms(structure: Structure, element_bytes: Mapping[str, int], rules: Rules = ONNXRUNTIME) -> MemoryTerms:
    """The steps of a network's SubNets, batch 1. element_bytes: bytes per element of values that are not float32."""
    grids = Grids(structure.space)

    def sizes_of(axis: Axis) -> frozenset[int]:
        return frozenset(grids.rows((axis,), grids.variables((axis,))).reshape(-1).tolist())

    steps = find_steps(structure, sizes_of, rules)
    number = {name: at for at, name in enumerate(steps.layouts)}
    sources = structure.space.sources
    return MemoryTerms(
        values=_Values(steps, grids, element_bytes, rules).terms(),
        steps=tuple(
            StepTerm(
                reads=tuple(number[name] for name in step.reads),
                writes=tuple(number[name] for name in step.writes),
                in_place=tuple(number[name] for name in step.in_place),
                view=step.view,
                relayout=step.relayout,
                present=present,
            )
            for step, present in steps.steps
        ),
        sources={
            number[each.value]: tuple((number[name], where) for name, where in sources.all_of(each.value))
            for each in structure.space.selections
        },
        inputs=tuple(number[name] for name in structure.graph.inputs),
        outputs=tuple(
            number[name] for name in structure.graph.outputs if name in number
        ),  # only computed values, not stored ones
        same_shape=rules.reuses,
        planned=rules.planned,
        derived=steps.derived,
    )


class _Values:
    """The arrays of all values of some steps. Values with equal layout, element type and axes share arrays."""

    def __init__(self, steps: Steps, grids: Grids, element_bytes: Mapping[str, int], rules: Rules) -> None:
        self._steps, self._grids, self._rules = steps, grids, rules
        self._element_bytes = {name: element_bytes.get(like, FLOAT_BYTES) for name, like in steps.typed_like.items()}
        self._numbers: dict[Key, int] = {}

    def terms(self) -> tuple[ValueTerm, ...]:
        """The term of each value, in the order of `Steps.layouts`."""
        known: dict[tuple[object, ...], ValueTerm] = {}
        found = []
        for name, layout in self._steps.layouts.items():
            of_kind = layout, self._element_bytes[name], self._steps.groups.get(name), self._steps.deciding.get(name)
            alike = (*of_kind, *self._steps.axes[name])
            if alike not in known:
                known[alike] = self._term(name)
            found.append(known[alike])
        return tuple(found)

    def _term(self, name: str) -> ValueTerm:
        axes, layout, bytes_ = self._steps.axes[name], self._steps.layouts[name], self._element_bytes[name]
        deciding = (self._steps.deciding[name],) if name in self._steps.deciding else axes[1:2]
        variables = self._grids.variables((*axes, *deciding))
        rows = [tuple(row) for row in self._grids.rows(axes, variables).tolist()]
        channels = [row[0] if row else 0 for row in self._grids.rows(deciding, variables).tolist()]
        pairs = list(zip(rows, channels, strict=True))
        shapes = [(bytes_, *laid_out(row, layout, self._rules, by)) for row, by in pairs]
        stored = [self._stored(name, row, by) for row, by in pairs]

        def table(found: Sequence[int]) -> np.ndarray:
            return np.asarray(found, np.int64).reshape(self._grids.shape(variables))

        return ValueTerm(
            variables=variables,
            bytes_=table([prod(key) for key in stored]),
            shapes=table([self._number(key) for key in shapes]),
            stored=table([self._number(key) for key in stored]),
            blocked=table([len(row) > 1 and in_blocks(by, layout, self._rules) for row, by in pairs]) > 0,
            temporary=name in self._steps.groups,
        )

    def _number(self, key: Key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _stored(self, name: str, shape: Sequence[int], deciding: int) -> Key:
        if name in self._steps.groups:
            groups = self._steps.groups[name]
            blocked = name in self._steps.deciding and in_blocks(deciding, read_as(groups), self._rules)
            return (0 if blocked else patches_bytes(shape, groups),)
        return self._element_bytes[name], *stored_shape(shape, self._steps.layouts[name], self._rules, deciding)


INPUT = -1  # stands for the network's input, which is not counted
MOST_ENTRIES = 20_000


def moments(terms: MemoryTerms, cardinalities: Sequence[int]) -> list[list[Table]]:
    """For each moment, tables whose sum is at most the bytes alive. Moments dominated by another moment are left out.

    The result is never empty: it may be one moment without tables. `terms.planned`: bounds for any order of the steps.
    """
    waiting = (_InAnyOrder if terms.planned else _InOneOrder)(terms)
    found = [row for row in _Moments(terms, tuple(cardinalities), waiting).rows() if row]
    kept: list[tuple[frozenset[int], list[Table], Values | None]] = []
    rows = [(frozenset(column for columns, _ in row for column in columns), row) for row in found]
    dense = [(columns, row, _dense(columns, row, cardinalities)) for columns, row in rows]
    for columns, row, values in sorted(dense, key=lambda each: -_peak(each[1])):
        if values is None or not any(_covers(other, columns, values) for other in kept):
            kept.append((columns, row, values))
    return [row for _, row, _ in kept] or [[]]


def _peak(row: Sequence[Table]) -> float:
    return sum(float(np.max(values)) for _, values in row)


def _dense(columns: frozenset[int], row: Sequence[Table], cardinalities: Sequence[int]) -> Values | None:
    """A row as one table over its columns, ascending; None if that table would be large."""
    scope = tuple(sorted(columns))
    if prod(cardinalities[column] for column in scope) > MOST_ENTRIES:
        return None
    return total(row, scope, cardinalities)


def _covers(other: tuple[frozenset[int], list[Table], Values | None], columns: frozenset[int], values: Values) -> bool:
    """Whether another row is at least `values` everywhere."""
    above, _, larger = other
    if larger is None or not columns <= above:
        return False
    return bool((spread(tuple(sorted(columns)), values, tuple(sorted(above))) <= larger).all())


class _InOneOrder:
    """Waiting values of steps that run in the given order."""

    def __init__(self, terms: MemoryTerms) -> None:
        self._terms = terms

    def during(self, at: int) -> Iterator[int]:
        """Values that later steps read (already made or not), then outputs."""
        step = self._terms.steps[at]
        for other in self._terms.steps[at + 1 :]:
            if step.present.implies(other.present):
                yield from other.reads
        yield from self._terms.outputs


class _InAnyOrder:
    """Waiting values of steps whose order is open. Sets of steps and of values are bit masks."""

    def __init__(self, terms: MemoryTerms) -> None:
        self._terms = terms
        self._earlier: list[int] = []  # for each step, the earlier steps that it needs in every SubNet that runs it,
        self._made: list[int] = []  # and the values that are made before it
        after: dict[int, tuple[int, int]] = {}  # value -> the steps done and the values made once the value exists
        for at, step in enumerate(terms.steps):
            earlier = made = 0
            for value in step.reads:
                sources = [after.get(source, (0, 0)) for source, _ in terms.sources.get(value, ((value, None),))]
                earlier |= reduce(and_, (steps for steps, _ in sources))
                made |= reduce(and_, (values for _, values in sources)) | 1 << value
            self._earlier.append(earlier)
            self._made.append(made)
            written = sum(1 << value for value in step.writes)
            after |= dict.fromkeys(step.writes, (earlier | 1 << at, made | written))

    def during(self, at: int) -> Iterator[int]:
        """Values that are made and read later in any order, then outputs."""
        step, made = self._terms.steps[at], self._made[at]
        for later, other in enumerate(self._terms.steps[at + 1 :], start=at + 1):
            if self._earlier[later] >> at & 1 and step.present.implies(other.present):
                yield from (value for value in other.reads if made >> value & 1)
        yield from (value for value in self._terms.outputs if made >> value & 1)


@dataclass(slots=True)
class _Moments:
    terms: MemoryTerms
    cardinalities: tuple[int, ...]
    waiting: "_InOneOrder | _InAnyOrder"
    writer: dict[int, StepTerm] = field(default_factory=dict)
    lies: dict[int, frozenset[int]] = field(default_factory=dict)

    def rows(self) -> list[list[Table]]:
        """One row of tables for each step."""
        self.writer = {value: step for step in self.terms.steps for value in step.writes}
        written: set[int] = set()
        found = []
        for at, step in enumerate(self.terms.steps):
            if not step.present.never:
                found.append(self._row(at, step, written))
            written.update(step.writes)
        return found

    def _row(self, at: int, step: StepTerm, written: set[int]) -> list[Table]:
        groups: list[tuple[frozenset[int], int]] = []
        waiting = (value for value in self.waiting.during(at) if self._tensors(value) <= written | {INPUT})
        for value in (*step.reads, *waiting):
            tensors = self._tensors(value)
            if INPUT not in tensors and all(tensors.isdisjoint(other) for other, _ in groups):
                groups.append((tensors, value))
        tables = [self._least(tensors) for tensors, _ in groups]
        if not step.view and not step.relayout:
            anew = [v for position, v in enumerate(step.writes) if position or not step.in_place]
            tables += [self._bytes(value) for value in anew]
        return [self._present(step, table) for table in tables]

    def _tensors(self, value: int) -> frozenset[int]:
        """The tensors that readers of a value may read."""
        if value not in self.lies:
            sources = self.terms.sources.get(value, ((value, None),))
            self.lies[value] = frozenset().union(*(self._written(source) for source, _ in sources))
        return self.lies[value]

    def _written(self, value: int) -> frozenset[int]:
        """The tensors that may store a value that its own step computes."""
        step = self.writer.get(value)
        if step is None:
            return frozenset((INPUT,))
        if step.view or step.relayout:
            return self._tensors(step.reads[0]) | (frozenset() if step.view else {value})
        return frozenset((value,))

    def _bytes(self, value: int) -> Table:
        term = self.terms.values[value]
        return Table(term.variables, np.asarray(term.bytes_, np.float64)).ascending()

    def _least(self, tensors: frozenset[int]) -> Table:
        """The bytes of the smallest of some tensors."""
        tables = [self._bytes(value) for value in sorted(tensors)]
        scope = tuple(sorted({column for columns, _ in tables for column in columns}))
        values = np.full([self.cardinalities[column] for column in scope], np.inf)
        for columns, numbers in tables:
            values = np.minimum(values, spread(columns, numbers, scope))
        return Table(scope, values)

    def _present(self, step: StepTerm, table: Table) -> Table:
        """The table, set to zero if the step does not run."""
        where = step.present
        if where.always:
            return table
        scope = tuple(sorted({*where.variables, *table.columns}))
        return Table(scope, table.over(scope) * spread(where.variables, where.mask.astype(np.float64), scope))

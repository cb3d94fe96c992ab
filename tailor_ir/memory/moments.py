"""Lower bounds of the activations' memory at each moment of a run, as sums of small tables, by which exact search prunes.

A moment is the time while one step runs. At that moment memory holds three groups of tensors: tensors that the step reads,
tensors that the step newly writes, and tensors that wait for a later step. A waiting tensor counts if the later step runs in
every SubNet in which the present step runs.

If the order of steps is open, a tensor counts as waiting only if it waits in every order: the present step needs the tensor, or
a value made from it, and the later step needs a result of the present step. If a value has several producers, a step needs only
what all of them need.

The true peak comes from the walk through whole SubNets (`tailor_ir.memory.lifetimes`). The walk also counts buffers that are
held between two tensors of the same shape, and tensors that wait for a step of some SubNets only. Therefore no moment exceeds
the peak of the walk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import and_
from typing import Protocol

import numpy as np

from solvers.tables import Table, Values, spread, total
from tailor_ir.memory.terms import MemoryTerms, StepTerm

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


class _Waiting(Protocol):
    """The values that wait while a step runs."""

    def during(self, at: int) -> Iterator[int]:
        """Values that are made before a step, and read later by a step that runs wherever this one does."""
        ...


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
    waiting: _Waiting
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

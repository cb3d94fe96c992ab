"""What activations take up at each moment of a run, at least, as sums of small tables: the rows that bound a memory limit.

While a step runs, the tensors that it reads lie in memory, those that it writes anew, and those that a step of the same block,
or one that runs in every SubNet, reads later. Left out is what only the walk through a whole SubNet knows
(`tasks.predict.memory`): places that are held between two tensors of the same shape, and steps whose runs depend on other
blocks. So no moment is above the peak of the walk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tailor_ir.lifetimes import MemoryTerms, StepTerm
from tasks.search.chain import Table, Values, over

INPUT = -1  # stands for the network's input, which is not counted
MOST_ENTRIES = 20_000
Skip = tuple[int, tuple[bool, ...]] | None


def moments(terms: MemoryTerms, cardinalities: Sequence[int]) -> list[list[Table]]:
    """For each moment tables whose sum is at most the bytes that are alive; moments that another one covers are left out.

    Never empty: one moment may have no table.
    """
    found = [row for row in _Moments(terms, tuple(cardinalities)).rows() if row]
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
    """A row as one table over its columns, ascending; None when it would be large."""
    scope = tuple(sorted(columns))
    shape = [cardinalities[column] for column in scope]
    if np.prod(shape) > MOST_ENTRIES:
        return None
    total = np.zeros(shape)
    for own, values in row:
        total += over(own, values, scope)
    return total


def _covers(other: tuple[frozenset[int], list[Table], Values | None], columns: frozenset[int], values: Values) -> bool:
    """Whether another row is nowhere below `values`."""
    above, _, larger = other
    if larger is None or not columns <= above:
        return False
    return bool((over(tuple(sorted(columns)), values, tuple(sorted(above))) <= larger).all())


@dataclass(slots=True)
class _Moments:
    terms: MemoryTerms
    cardinalities: tuple[int, ...]
    writer: dict[int, StepTerm] = field(default_factory=dict)
    lies: dict[int, frozenset[int]] = field(default_factory=dict)
    sure: list[bool] = field(default_factory=list)

    def rows(self) -> list[list[Table]]:
        """One for each step that surely runs."""
        self.writer = {value: step for step in self.terms.steps for value in step.writes}
        self.sure = self._sure()
        written: set[int] = set()
        found = []
        for at, step in enumerate(self.terms.steps):
            if self.sure[at]:
                found.append(self._row(at, step, written))
            written.update(step.writes)
        return found

    def _row(self, at: int, step: StepTerm, written: set[int]) -> list[Table]:
        groups: list[tuple[frozenset[int], int]] = []
        later = [
            value
            for after, other in enumerate(self.terms.steps[at + 1 :], at + 1)
            if self.sure[after] and _implies(_skip(step), _skip(other))
            for value in other.reads
            if self._tensors(value) <= written | {INPUT}
        ]
        values = [*step.reads, *later, *(value for value in self.terms.outputs if self._tensors(value) <= written)]
        for value in values:
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
            found: set[int] = set()
            if value in self.terms.aliases:
                found |= self._tensors(self.terms.aliases[value][0])
            step = self.writer.get(value)
            if step is None:
                found.add(INPUT)
            elif step.view or step.relayout:
                found |= self._tensors(step.reads[0]) | (set() if step.view else {value})
            else:
                found.add(value)
            self.lies[value] = frozenset(found)
        return self.lies[value]

    def _sure(self) -> list[bool]:
        """For each step, whether it surely runs in the SubNets that have its block: somebody reads what it writes."""
        used = set(self.terms.outputs)
        entries: dict[int, list[int]] = {}
        for exit_, (entry, _) in self.terms.aliases.items():
            entries.setdefault(entry, []).append(exit_)
        readers: dict[int, list[int]] = {}
        for at, step in enumerate(self.terms.steps):
            for value in step.reads:
                readers.setdefault(value, []).append(at)
        sure = [False] * len(self.terms.steps)
        for at in range(len(self.terms.steps) - 1, -1, -1):
            own = self.terms.steps[at]
            for value in own.writes:
                follows = any(
                    sure[reader] and _implies(_skip(own), _skip(self.terms.steps[reader]))
                    for reader in readers.get(value, [])
                )
                if value in used or follows or any(exit_ in used for exit_ in entries.get(value, [])):
                    used.add(value)
                    sure[at] = True
        return sure

    def _bytes(self, value: int) -> Table:
        term = self.terms.values[value]
        order = sorted(range(len(term.variables)), key=term.variables.__getitem__)
        columns = tuple(term.variables[axis] for axis in order)
        return columns, np.asarray(term.bytes_, np.float64).transpose(order)

    def _least(self, tensors: frozenset[int]) -> Table:
        """The smallest of some tensors."""
        tables = [self._bytes(value) for value in sorted(tensors)]
        scope = tuple(sorted({column for columns, _ in tables for column in columns}))
        values = np.full([self.cardinalities[column] for column in scope], np.inf)
        for columns, numbers in tables:
            values = np.minimum(values, over(columns, numbers, scope))
        return scope, values

    def _present(self, step: StepTerm, table: Table) -> Table:
        """Nothing, where the step's block is skipped."""
        if step.skipped is None:
            return table
        column, skipped = step.skipped
        scope = tuple(sorted({column, *table[0]}))
        return scope, over(*table, scope) * over((column,), (~skipped).astype(np.float64), scope)


def _skip(step: StepTerm) -> Skip:
    return None if step.skipped is None else (step.skipped[0], tuple(map(bool, step.skipped[1])))


def _implies(present: Skip, other: Skip) -> bool:
    """Whether a block is there wherever another one is."""
    if other is None:
        return True
    if present is None or present[0] != other[0]:
        return False
    return all(left or not gone for left, gone in zip(present[1], other[1], strict=True))

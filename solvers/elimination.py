"""Eliminations: the gain and costs that each decision of a variable adds, per state of the frontier.

Derived columns are not variables: each is known as soon as the columns that it follows from are known. States of the frontier
that no code reaches are left out, so derived columns add no states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from solvers.errors import TooEntangled
from solvers.ordering import LARGEST_TABLE
from solvers.tables import Derived, Table, Values, spread

Indices = NDArray[np.int64]
Columns = tuple[int, ...]
LARGEST_ELIMINATION = 4 * LARGEST_TABLE
"""Maximum number of entries of one elimination; all are in memory at once with the value of each column."""
MOST_SPREAD = 2**40
"""Maximum number of combinations of frontier columns that are numbered; a frontier with more is too entangled in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elimination:
    """Decides `variable`. Its tables are flat (A,): each of the B states of the frontier before, with each choice.

    gain (A,) and costs (K, A): sums of the tables whose last unknown column is known now.
    entries (B, choices): the entry of each state of the frontier before, with each choice.
    after (A,): the state of the frontier after, for each entry.
    """

    variable: int
    gain: Values
    costs: Values
    entries: Indices
    after: Indices


@dataclass(slots=True)
class _Plan:
    """The schedule of eliminations.

    last: by column, the number of the last elimination that reads it. tables: by elimination and sum, the tables that are
    complete with it. derived: by elimination, the columns that become known with it.
    """

    last: list[int]
    tables: list[list[list[Table]]]
    derived: list[list[int]]


def eliminate(
    order: Sequence[int], cardinalities: Sequence[int], sums: Sequence[Sequence[Table]], derived: Sequence[Derived]
) -> tuple[Elimination, ...]:
    """One elimination for each variable, in an order. sums: the tables of the gain, then of each cost.

    TooEntangled if the tables become too large.
    """
    sizes = (*cardinalities, *[2] * len(derived))
    plan = _plan(order, len(cardinalities), sums, derived)
    frontier: Columns = ()
    states = np.zeros((1, 0), np.int64)
    found: list[Elimination] = []
    entries = 0
    for number, variable in enumerate(order):
        choices = sizes[variable]
        entries += len(states) * choices
        if len(states) * choices > LARGEST_ELIMINATION or entries > LARGEST_TABLE * len(order):
            raise TooEntangled(entries)
        values = dict(zip(frontier, np.repeat(states, choices, axis=0).T, strict=True))
        values[variable] = np.tile(np.arange(choices), len(states))
        for column in plan.derived[number]:
            one = derived[column - len(cardinalities)]
            values[column] = np.asarray(one.values)[tuple(values[each] for each in one.columns)].astype(np.int64)
        numbers = np.stack([_sum(tables, values, len(states) * choices, sizes) for tables in plan.tables[number]])
        frontier = tuple(sorted(column for column in values if plan.last[column] > number))
        after, states = _numbered(frontier, values, sizes, len(states) * choices)
        found.append(
            Elimination(
                variable=variable,
                gain=numbers[0],
                costs=numbers[1:],
                entries=np.arange(numbers.shape[1]).reshape(-1, choices),
                after=after,
            )
        )
    assert frontier == ()
    return tuple(found)


def _plan(order: Sequence[int], variables: int, sums: Sequence[Sequence[Table]], derived: Sequence[Derived]) -> _Plan:
    known = [0] * (variables + len(derived))
    for number, variable in enumerate(order):
        known[variable] = number
    last = list(known)
    determined: list[list[int]] = [[] for _ in order]

    def looked_at(columns: Columns) -> int:
        at = max((known[column] for column in columns), default=0)
        for column in columns:
            last[column] = max(last[column], at)
        return at

    for column, one in enumerate(derived, start=variables):
        last[column] = known[column] = looked_at(one.columns)
        if order:
            determined[known[column]].append(column)
    tables: list[list[list[Table]]] = [[[] for _ in sums] for _ in order]
    for row, own in enumerate(sums):
        for table in own:
            tables[looked_at(table.columns)][row].append(table)
    return _Plan(last, tables, determined)


def _sum(tables: Sequence[Table], values: dict[int, Indices], entries: int, sizes: Sequence[int]) -> Values:
    """The sum (A,) of tables at the columns' values (A,)."""
    found = np.zeros(entries)
    for columns, numbers in _joined(tables, sizes):
        at = np.zeros(entries, np.int64)
        for column in columns:
            at *= sizes[column]
            at += values[column]
        found += numbers.ravel()[at]
    return found


def _joined(tables: Sequence[Table], sizes: Sequence[int]) -> list[tuple[Columns, Values]]:
    """Fewer tables with the same sum: each table is added to a table that has all of its columns. Columns ascend."""
    found: list[tuple[Columns, Values]] = []
    for columns, numbers in sorted(tables, key=lambda table: -len(table.columns)):
        whole = next((one for one in found if set(columns) <= set(one[0])), None)
        if whole is None:
            ascending = tuple(sorted(columns))
            whole = ascending, np.zeros([sizes[column] for column in ascending])
            found.append(whole)
        whole[1][...] += spread(columns, numbers, whole[0])
    return found


def _numbered(
    columns: Columns, values: dict[int, Indices], sizes: Sequence[int], entries: int
) -> tuple[Indices, Indices]:
    """The distinct combinations (B, columns) of values, in order, and the number of the combination for each entry (A,)."""
    shape = tuple(sizes[column] for column in columns)
    spaces = prod(shape)
    if spaces > MOST_SPREAD:
        raise TooEntangled(spaces)
    codes = np.zeros(entries, np.int64)
    for column in columns:
        codes = codes * sizes[column] + values[column]
    if spaces <= 4 * entries:
        there = np.zeros(spaces, bool)
        there[codes] = True
        different, after = np.flatnonzero(there), (np.cumsum(there) - 1)[codes]
    else:
        different, after = np.unique(codes, return_inverse=True)
    states = np.stack(np.unravel_index(different, shape), axis=1) if columns else np.zeros((1, 0), np.int64)
    return after.astype(np.int64), states

"""A sum of tables over few variables each, taken apart into eliminations that decide one variable after the other.

After each elimination only the *frontier* matters: the decided variables that share a table with an undecided one. Along a
network the frontier is a handful of variables: the resolution, the widths and the depth of the current stage. Source: variable
elimination (R. Dechter, *Bucket elimination*, Artificial Intelligence 113, 1999), on a path.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from solvers.errors import NotANumber
from solvers.ordering import best_order
from solvers.tables import Derived, Table, Values, total, with_derived

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elimination:
    """Decides `variable`. Its tables are flat (A,), over the frontier before and the variable, columns ascending.

    shape: the cardinalities of these columns. axis: the position of the variable among them.
    gain (A,) and costs (K, A): sums of the tables whose last undecided variable this is.
    possible (A,): whether derived variables have the values that follow from the others; None: all entries are.
    entries (B, choices): the entry of each state of the frontier before, with each choice.
    after (A,): the state of the frontier after, for each entry.
    """

    variable: int
    shape: tuple[int, ...]
    axis: int
    gain: Values
    costs: Values
    entries: Indices
    after: Indices
    possible: NDArray[np.bool_] | None = None


class Chain:
    """Eliminations for a gain and K costs, each the sum of tables over choice indices of V variables."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        gain: Sequence[Table],
        costs: Sequence[Sequence[Table]],
        derived: Sequence[Derived] = (),
    ) -> None:
        """NotANumber when a table has an entry that is none, TooEntangled when no order of the variables has small tables.

        cardinalities: of the V variables. derived: columns of the tables beyond these; codes have none of them.
        """
        if any(np.isnan(values).any() for tables in (gain, *costs) for _, values in tables):
            raise NotANumber("a table has an entry that is no number (NaN)")
        self.variables = len(cardinalities)
        self.cardinalities = (*map(int, cardinalities), *[2] * len(derived))
        self.constraints = len(costs)
        self._derived = tuple(derived)
        relations = [_relation(self.variables + number, one) for number, one in enumerate(derived)]
        scopes = {frozenset(columns) for tables in (gain, *costs, relations) for columns, _ in tables}
        self.order = best_order(self.cardinalities, scopes)
        self.eliminations = self._eliminations([gain, *costs, relations])

    def view(self, rows: Sequence[int], prices: Values | None = None, weight: float = 1.0) -> "Chain":
        """The same eliminations with the costs of `rows` alone; the gain is `weight` gain - `prices` (K,) costs."""
        changed = prices is not None or weight != 1.0
        if not changed and list(rows) == list(range(self.constraints)):
            return self
        chain = copy(self)
        chain.__dict__.pop("least", None)
        chain.constraints = len(rows)
        chain.eliminations = tuple(
            replace(
                each,
                gain=weight * each.gain - (0.0 if prices is None else prices @ each.costs) if changed else each.gain,
                costs=each.costs[list(rows)],
            )
            for each in self.eliminations
        )
        return chain

    def value(self, code: Indices) -> tuple[float, Values]:
        """Gain and costs (K,) of a code (V,)."""
        state, gain, costs = 0, 0.0, np.zeros(self.constraints)
        code = with_derived(code[None], self._derived)[0]
        for each in self.eliminations:
            entry = each.entries[state, code[each.variable]]
            gain += float(each.gain[entry])
            costs = costs + each.costs[:, entry]
            state = int(each.after[entry])
        return gain, costs

    def rest(self, prices: Values, weight: float = 1.0) -> list[Values]:
        """The most that each elimination and those after it can add, per state before: `weight` gain - `prices` (K,) costs.

        The list has one array more than there are eliminations; the last is (1,), zero.
        """
        return self._backward([weight * each.gain - prices @ each.costs for each in self.eliminations])

    @cached_property
    def least(self) -> tuple[list[Values], ...]:
        """For each cost the least that each elimination and those after it must add, per state before."""
        found = []
        for k in range(self.constraints):
            backward = self._backward([-each.costs[k] for each in self.eliminations])
            found.append([-values for values in backward])
        return tuple(found)

    def best(self, prices: Values, weight: float = 1.0) -> tuple[Indices, float, Values]:
        """The code (V,) with the largest `weight` gain - `prices` (K,) costs; its gain and costs (K,)."""
        rest = self.rest(prices, weight)
        code = np.zeros(len(self.cardinalities), np.int64)
        state, gain, costs = 0, 0.0, np.zeros(self.constraints)
        for each, following in zip(self.eliminations, rest[1:], strict=True):
            entries = each.entries[state]
            values = weight * each.gain[entries] - prices @ each.costs[:, entries] + following[each.after[entries]]
            if each.possible is not None:
                values[~each.possible[entries]] = -np.inf
            choice = int(np.argmax(values))
            code[each.variable] = choice
            gain += float(each.gain[entries[choice]])
            costs = costs + each.costs[:, entries[choice]]
            state = int(each.after[entries[choice]])
        return code[: self.variables], gain, costs

    def _backward(self, tables: Sequence[Values]) -> list[Values]:
        """The largest sums of flat tables, one for each elimination, from the last elimination to the first."""
        rest = [np.zeros(1)]
        for each, values in zip(reversed(self.eliminations), reversed(tables), strict=True):
            sums = values + rest[-1][each.after]
            if each.possible is not None:
                sums = np.where(each.possible, sums, -np.inf)
            sums = sums.reshape(each.shape)
            rest.append(sums.max(axis=each.axis).ravel())
        return rest[::-1]

    def _eliminations(self, sums: Sequence[Sequence[Table]]) -> tuple[Elimination, ...]:
        """One for each variable, in order. sums: the tables of the gain, of each cost, then of what is impossible (above 0)."""
        position = {variable: number for number, variable in enumerate(self.order)}
        completed: list[list[list[Table]]] = [[[] for _ in sums] for _ in self.order]
        last = dict.fromkeys(self.order, -1)
        for row, tables in enumerate(sums):
            for table in tables:
                columns, _ = table
                at = max((position[column] for column in columns), default=0)
                completed[at][row].append(table)
                for column in columns:
                    last[column] = max(last[column], at)
        found: list[Elimination] = []
        before: tuple[int, ...] = ()
        for number, variable in enumerate(self.order):
            scope = tuple(sorted((*before, variable)))
            after = tuple(column for column in scope if last[column] > number)
            found.append(self._elimination(variable, scope, after, completed[number]))
            before = after
        assert before == ()
        return tuple(found)

    def _elimination(
        self, variable: int, scope: tuple[int, ...], after: tuple[int, ...], sums: Sequence[Sequence[Table]]
    ) -> Elimination:
        """The elimination of a variable. scope: the frontier before and the variable. after: the frontier after. sums: tables
        complete now.
        """
        shape = tuple(self.cardinalities[column] for column in scope)
        numbers = np.stack([total(tables, scope, self.cardinalities) for tables in sums])
        choices = dict(zip(scope, np.indices(shape).reshape(len(scope), -1), strict=True))
        states = np.zeros(prod(shape), np.int64)
        for column in after:
            states = states * self.cardinalities[column] + choices[column]
        axis = scope.index(variable)
        return Elimination(
            variable=variable,
            shape=shape,
            axis=axis,
            gain=numbers[0].ravel(),
            costs=numbers[1:-1].reshape(len(sums) - 2, -1),
            entries=np.moveaxis(np.arange(prod(shape)).reshape(shape), axis, -1).reshape(-1, shape[axis]),
            after=states,
            possible=numbers[-1].ravel() == 0 if sums[-1] else None,
        )


def _relation(column: int, derived: Derived) -> Table:
    """1 where a derived column is not what it follows to be, else 0."""
    values = np.asarray(derived.values, bool)
    return Table((*derived.columns, column), np.stack([values, ~values], axis=-1).astype(np.float64))

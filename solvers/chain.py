"""A sum of tables over few variables each, decomposed into eliminations that decide one variable after the other.

After each elimination only the *frontier* matters: the decided variables that share a table with an undecided one. Along a
network the frontier is a handful of variables: the resolution, the widths and the depth of the current stage. Source: variable
elimination (R. Dechter, *Bucket elimination*, Artificial Intelligence 113, 1999), on a path.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from solvers.elimination import Elimination, eliminate
from solvers.errors import NotANumber
from solvers.ordering import best_order
from solvers.tables import Derived, Table, Values

Indices = NDArray[np.int64]


class Chain:
    """Eliminations for a gain and K costs, each the sum of tables over choice indices of V variables."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        gain: Sequence[Table],
        costs: Sequence[Sequence[Table]],
        derived: Sequence[Derived] = (),
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """Raise NotANumber if a table has a NaN entry, TooEntangled if no order of the variables has small tables.

        cardinalities: number of choices of each of the V variables. derived: further columns of the tables, which codes do not
        contain. groups: groups of variables for which tables are known to be small if one group is decided after the other
        (`best_order`).
        """
        if any(np.isnan(values).any() for tables in (gain, *costs) for _, values in tables):
            raise NotANumber("a table has an entry that is no number (NaN)")
        self.variables = len(cardinalities)
        self.cardinalities = tuple(map(int, cardinalities))
        self.constraints = len(costs)
        scopes = {frozenset(columns) for tables in (gain, *costs) for columns, _ in tables}
        self.order = best_order(self.cardinalities, scopes, [one.columns for one in derived], groups)
        self.eliminations: tuple[Elimination, ...] = eliminate(self.order, self.cardinalities, [gain, *costs], derived)

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
        for each in self.eliminations:
            entry = each.entries[state, code[each.variable]]
            gain += float(each.gain[entry])
            costs = costs + each.costs[:, entry]
            state = int(each.after[entry])
        return gain, costs

    def rest(self, prices: Values, weight: float = 1.0) -> list[Values]:
        """The most that each elimination and those after it can add to `weight` gain - `prices` (K,) costs, per state before.

        The list has one array more than there are eliminations; the last is (1,), zero.
        """
        return self._backward([weight * each.gain - prices @ each.costs for each in self.eliminations])

    @cached_property
    def least(self) -> tuple[list[Values], ...]:
        """For each cost, the least that the remaining eliminations must add, per elimination and state before it."""
        found = []
        for k in range(self.constraints):
            backward = self._backward([-each.costs[k] for each in self.eliminations])
            found.append([-values for values in backward])
        return tuple(found)

    def best(self, prices: Values, weight: float = 1.0) -> tuple[Indices, float, Values]:
        """The code (V,) with the largest `weight` gain - `prices` (K,) costs; its gain and costs (K,)."""
        rest = self.rest(prices, weight)
        code = np.zeros(self.variables, np.int64)
        state, gain, costs = 0, 0.0, np.zeros(self.constraints)
        for each, following in zip(self.eliminations, rest[1:], strict=True):
            entries = each.entries[state]
            values = weight * each.gain[entries] - prices @ each.costs[:, entries] + following[each.after[entries]]
            choice = int(np.argmax(values))
            code[each.variable] = choice
            gain += float(each.gain[entries[choice]])
            costs = costs + each.costs[:, entries[choice]]
            state = int(each.after[entries[choice]])
        return code, gain, costs

    def _backward(self, tables: Sequence[Values]) -> list[Values]:
        """The largest sums of flat tables from each elimination on, computed from the last elimination to the first."""
        rest = [np.zeros(1)]
        for each, values in zip(reversed(self.eliminations), reversed(tables), strict=True):
            sums = values + rest[-1][each.after]
            rest.append(reduce(np.maximum, sums.reshape(each.entries.shape).T))  # faster than along few choices
        return rest[::-1]

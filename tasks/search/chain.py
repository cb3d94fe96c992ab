"""A sum of terms with few variables each, taken apart into steps that decide one variable after the other.

After each step only the *frontier* matters: the decided variables that an undecided one shares a term with. Along a network
that is a handful: the resolution, the widths and the depth of the stage at hand. Source: variable elimination (R. Dechter,
*Bucket elimination*, Artificial Intelligence 113, 1999), on a path.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from tasks.errors import UserError

Values = NDArray[np.float64]
Indices = NDArray[np.int64]
Table = tuple[tuple[int, ...], Values]  # columns of choice indices, and numbers with one axis for each
LARGEST_TABLE = 4_000_000
HUBS = 4  # variables of most terms that an order may begin with


@dataclass(frozen=True, slots=True)
class Step:
    """Decides `variable`. Tables are flat, over `before` and the variable ("around"), columns ascending.

    `gain` (A,) and `costs` (K, A): of the terms that are complete now. `around` (B, choices): positions of each state of the
    frontier before with each choice; `after` (A,): states of the frontier after. `axis`: the variable's among those around.
    """

    variable: int
    shape: tuple[int, ...]
    axis: int
    gain: Values
    costs: Values
    around: Indices
    after: Indices


class Chain:
    """Steps for a gain and K costs, each a sum of tables over choice indices of V variables."""

    def __init__(self, cardinalities: Sequence[int], gain: Sequence[Table], costs: Sequence[Sequence[Table]]) -> None:
        """UserError when a table has no number, or the variables hang together so much that no order has small tables."""
        if any(np.isnan(values).any() for tables in (gain, *costs) for _, values in tables):
            raise UserError(
                "search.method=exact",
                "a predictor gives no number (NaN) for some SubNets",
                next_step="run the predict stage again: autotailor predict …",
            )
        self.cardinalities = tuple(map(int, cardinalities))
        self.constraints = len(costs)
        scopes = {frozenset(columns) for tables in (gain, *costs) for columns, _ in tables}
        self.order = _best_order(self.cardinalities, scopes)
        self.steps = self._steps([gain, *costs])

    def view(self, rows: Sequence[int], prices: Values | None = None, weight: float = 1.0) -> "Chain":
        """The same steps with some of the costs, those of `rows`; the gain is `weight` gain - `prices` (K,) costs."""
        changed = prices is not None or weight != 1.0
        if not changed and list(rows) == list(range(self.constraints)):
            return self
        chain = copy(self)
        chain.__dict__.pop("least", None)
        chain.constraints = len(rows)
        chain.steps = tuple(
            replace(
                step,
                gain=weight * step.gain - (0.0 if prices is None else prices @ step.costs) if changed else step.gain,
                costs=step.costs[list(rows)],
            )
            for step in self.steps
        )
        return chain

    def value(self, code: Indices) -> tuple[float, Values]:
        """Gain and costs (K,) of a code (V,)."""
        at, gain, costs = 0, 0.0, np.zeros(self.constraints)
        for step in self.steps:
            around = step.around[at, code[step.variable]]
            gain += float(step.gain[around])
            costs = costs + step.costs[:, around]
            at = int(step.after[around])
        return gain, costs

    def _steps(self, sums: Sequence[Sequence[Table]]) -> tuple[Step, ...]:
        position = {variable: number for number, variable in enumerate(self.order)}
        completed: list[list[tuple[int, Table]]] = [[] for _ in self.order]
        last = dict.fromkeys(self.order, -1)
        for row, tables in enumerate(sums):
            for columns, values in tables:
                at = max((position[column] for column in columns), default=0)
                completed[at].append((row, (columns, values)))
                for column in columns:
                    last[column] = max(last[column], at)
        steps: list[Step] = []
        before: tuple[int, ...] = ()
        for number, variable in enumerate(self.order):
            scope = tuple(sorted((*before, variable)))
            shape = tuple(self.cardinalities[column] for column in scope)
            numbers = np.zeros((len(sums), *shape))
            for row, (columns, values) in completed[number]:
                numbers[row] += over(columns, values, scope)
            left = tuple(column for column in scope if last[column] > number)
            grid = np.indices(shape).reshape(len(scope), -1)
            axis = scope.index(variable)
            steps.append(
                Step(
                    variable,
                    shape,
                    axis,
                    numbers[0].ravel(),
                    numbers[1:].reshape(len(sums) - 1, -1),
                    np.moveaxis(np.arange(prod(shape)).reshape(shape), axis, -1).reshape(-1, shape[axis]),
                    self._flat(left, {column: grid[i] for i, column in enumerate(scope)}, grid.shape[1]),
                )
            )
            before = left
        assert before == ()
        return tuple(steps)

    def _flat(self, columns: tuple[int, ...], at: dict[int, Indices], count: int) -> Indices:
        flat = np.zeros(count, np.int64)
        for column in columns:
            flat = flat * self.cardinalities[column] + at[column]
        return flat

    def rest(self, prices: Values, weight: float = 1.0) -> list[Values]:
        """The most that the steps from each one on can add, per state before the step: `weight` gain - `prices` (K,) costs.

        One array more than there are steps; the last is (1,), zero.
        """
        return self._backward([weight * step.gain - prices @ step.costs for step in self.steps])

    @cached_property
    def least(self) -> tuple[list[Values], ...]:
        """For each cost the least that the steps from each one on must add, per state."""
        found = []
        for k in range(self.constraints):
            backward = self._backward([-step.costs[k] for step in self.steps])
            found.append([-values for values in backward])
        return tuple(found)

    def _backward(self, tables: Sequence[Values]) -> list[Values]:
        rest = [np.zeros(1)]
        for step, values in zip(reversed(self.steps), reversed(tables), strict=True):
            around = (values + rest[-1][step.after]).reshape(step.shape)
            rest.append(around.max(axis=step.axis).ravel())
        return rest[::-1]

    def best(self, prices: Values, weight: float = 1.0) -> tuple[Indices, float, Values]:
        """The code (V,) with the largest `weight` gain - `prices` (K,) costs; its gain and costs (K,)."""
        rest = self.rest(prices, weight)
        code = np.zeros(len(self.cardinalities), np.int64)
        at, gain, costs = 0, 0.0, np.zeros(self.constraints)
        for step, following in zip(self.steps, rest[1:], strict=True):
            around = step.around[at]
            values = weight * step.gain[around] - prices @ step.costs[:, around] + following[step.after[around]]
            choice = int(np.argmax(values))
            code[step.variable] = choice
            gain += float(step.gain[around[choice]])
            costs = costs + step.costs[:, around[choice]]
            at = int(step.after[around[choice]])
        return code, gain, costs


def over(columns: tuple[int, ...], values: Values, scope: tuple[int, ...]) -> Values:
    """An array over `columns` as one that broadcasts over `scope` (ascending)."""
    order = sorted(range(len(columns)), key=columns.__getitem__)
    ascending = iter(np.asarray(values).transpose(order).shape)
    shape = [next(ascending) if column in columns else 1 for column in scope]
    return np.asarray(values).transpose(order).reshape(shape)


def _best_order(cardinalities: Sequence[int], scopes: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """An order with small tables: greedy, after none or a few of the variables that most others depend on."""
    neighbours: dict[int, set[int]] = {variable: set() for variable in range(len(cardinalities))}
    for scope in scopes:
        for variable in scope:
            neighbours[variable] |= scope - {variable}
    hubs = sorted(neighbours, key=lambda variable: -len(neighbours[variable]))
    found = [
        _greedy(cardinalities, neighbours, hubs[:count], whole)
        for count in range(min(HUBS, len(hubs)) + 1)
        for whole in (False, True)
    ]
    cost, order = min(found)
    if cost > LARGEST_TABLE * len(cardinalities):
        raise UserError(
            "search.method=exact",
            f"the predictors tie too many variables together (tables of {cost:.1e} numbers)",
            next_step="use search.method=genetic",
        )
    return tuple(order)


def _greedy(
    cardinalities: Sequence[int], neighbours: dict[int, set[int]], first: Sequence[int], whole: bool
) -> tuple[int, list[int]]:
    """Size of all tables, and an order that begins with `first` and then always takes what leaves the smallest frontier.

    whole: of the parts that the decided variables have cut the rest into, one after the other, the hub of each first.
    """
    order: list[int] = []
    frontier: set[int] = set()
    undecided = set(neighbours)
    total = 0

    def left(decided: set[int]) -> set[int]:
        return {one for one in frontier | decided if neighbours[one] & (undecided - decided)}

    def size(variables: set[int]) -> int:
        return prod(cardinalities[one] for one in variables)

    while undecided:
        if len(order) < len(first):
            chosen = first[len(order)]
        elif whole:
            part = min(_parts(neighbours, undecided), key=lambda one: (size(left(one)), len(one), min(one)))
            chosen = min(part, key=lambda one: (-len(neighbours[one] & part), one))
        else:
            chosen = min(_near(frontier, neighbours, undecided), key=lambda one: (size(left({one})), one))
        total += size(frontier | {chosen})
        order.append(chosen)
        frontier = left({chosen})
        undecided.remove(chosen)
    return total, order


def _parts(neighbours: dict[int, set[int]], undecided: set[int]) -> list[set[int]]:
    """The undecided variables, those together that hang together without the decided ones."""
    parts = []
    rest = set(undecided)
    while rest:
        part: set[int] = set()
        new = {min(rest)}
        while new:
            part |= new
            new = set().union(*(neighbours[one] for one in new)) & undecided - part
        parts.append(part)
        rest -= part
    return parts


def _near(frontier: set[int], neighbours: dict[int, set[int]], undecided: set[int]) -> set[int]:
    """Undecided variables with a term in common with the frontier; all, if there are none."""
    return set().union(*(neighbours[one] for one in frontier)) & undecided or undecided

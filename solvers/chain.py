"""A chain: a sum of tables over few variables each, as eliminations that decide one variable after the other.

After each elimination only the *frontier* matters: the decided variables that share a table with an undecided one.
Along a network the frontier is a handful of variables: the resolution, the widths and the depth of the current stage.
Source: variable elimination (R. Dechter, *Bucket elimination*, Artificial Intelligence 113, 1999), on a path. An
elimination has the gain and costs that each decision of a variable adds, per state of the frontier. It takes a table
over the frontier and the variable, so that a good order keeps the frontier small.

Derived columns are not variables: each is known as soon as the columns that it follows from are known. States of the
frontier that no code reaches are left out, so derived columns add no states.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod

import numpy as np

from solvers.tables import Derived, Indices, NotANumber, Table, TooEntangled, Values, spread

LARGEST_TABLE = 4_000_000
HUBS = 4  # number of most connected variables that an order may begin with

Adjacency = dict[int, set[int]]
"""For each variable, the variables that share a table with it."""


def best_order(
    cardinalities: Sequence[int], scopes: Iterable[frozenset[int]], derived: Sequence[Sequence[int]] = ()
) -> tuple[int, ...]:
    """The order with the smallest tables among several greedy orders, each of which begins with none or a few of the hubs.

    A hub is one of the variables with the most neighbours. scopes: the columns of each table. derived: for each derived column
    (numbered after the variables), the columns that it follows from. TooEntangled when no order has small tables.
    """
    count = len(cardinalities)
    neighbours: Adjacency = {column: set() for column in range(count + len(derived))}
    for scope in (*scopes, *(frozenset((*columns, column)) for column, columns in enumerate(derived, start=count))):
        for column in scope:
            neighbours[column] |= scope - {column}
    entries, order = min(_from_hubs(cardinalities, neighbours, derived))
    if (
        entries > LARGEST_TABLE * count and not derived
    ):  # derived columns make some states unreachable, so the count is too pessimistic with them
        raise TooEntangled(entries)
    return tuple(order)


def _from_hubs(
    cardinalities: Sequence[int], neighbours: Adjacency, derived: Sequence[Sequence[int]]
) -> list[tuple[int, list[int]]]:
    """Entries and order of each style, after none or a few of the hubs."""
    count = len(cardinalities)
    hubs = sorted(range(count), key=lambda variable: -len(neighbours[variable]))
    styles = (_nearest, _by_parts, _as_derived) if derived else (_nearest, _by_parts)
    found = []
    for hub_count in range(min(HUBS, len(hubs)) + 1):
        for style in styles:
            walk = _Walk(cardinalities, neighbours, derived)
            while walk.undecided:
                known = len(walk.order)
                walk.decide(hubs[known] if known < hub_count else style(walk))
            found.append((walk.entries, walk.order))
    return found


class _Walk:
    """An order under construction.

    A derived column is known as soon as the columns that it follows from are known. frontier: known columns that share a table
    with an unknown one. entries: size of all tables so far.
    """

    def __init__(self, cardinalities: Sequence[int], neighbours: Adjacency, derived: Sequence[Sequence[int]]) -> None:
        self.neighbours = neighbours
        self.order: list[int] = []
        self.entries = 0
        self.undecided = set(range(len(cardinalities)))
        self.unknown = set(neighbours)
        self.frontier: set[int] = set()
        self.sources = dict(enumerate(derived, start=len(cardinalities)))
        self.cardinalities = (*cardinalities, *[2] * len(derived))
        self._following: dict[int, list[int]] = {}
        for column, columns in self.sources.items():
            for one in columns:
                self._following.setdefault(one, []).append(column)

    def size(self, columns: set[int]) -> int:
        """Number of combinations of the values of columns."""
        return prod(self.cardinalities[one] for one in columns)

    def left(self, variable: int) -> set[int]:
        """The frontier after a variable is decided."""
        new = self._known_by(variable)
        return {
            one
            for one in self.frontier | new
            if any(other in self.unknown and other not in new for other in self.neighbours[one])
        }

    def decide(self, variable: int) -> None:
        """Take a variable as the next."""
        self.entries += self.size(self.frontier | {variable})
        self.frontier, new = self.left(variable), self._known_by(variable)
        self.unknown -= new
        self.undecided.remove(variable)
        self.order.append(variable)

    def near(self) -> set[int]:
        """The undecided neighbours of the frontier; all undecided variables if it has none."""
        return set().union(*(self.neighbours[one] for one in self.frontier)) & self.undecided or self.undecided

    def _known_by(self, variable: int) -> set[int]:
        """A variable together with the derived columns that become known with it."""
        new, waiting = {variable}, [variable]
        while waiting:
            for column in self._following.get(waiting.pop(), ()):
                if column not in new and all(one in new or one not in self.unknown for one in self.sources[column]):
                    new.add(column)
                    waiting.append(column)
        return new


def _nearest(walk: _Walk) -> int:
    """The variable that leaves the smallest frontier."""
    return min(walk.near(), key=lambda one: (walk.size(walk.left(one)), one))


def _by_parts(walk: _Walk) -> int:
    """The decided variables cut the undecided ones into parts; one part is finished after the other, its hub first."""
    parts = [part for part in _parts(walk.neighbours, walk.unknown) if part & walk.undecided]

    def left(part: set[int]) -> set[int]:
        """The frontier after a part is decided."""
        rest = walk.unknown - part
        return {one for one in walk.frontier | part if walk.neighbours[one] & rest}

    part = min(parts, key=lambda one: (walk.size(left(one)), len(one), min(one)))
    return min(part & walk.undecided, key=lambda one: (-len(walk.neighbours[one] & part), one))


def _as_derived(walk: _Walk) -> int:
    """A variable that does not enlarge the frontier; else the next one in the order in which derived columns follow."""
    nearest = _nearest(walk)
    if walk.size(walk.left(nearest)) <= walk.size(walk.frontier):
        return nearest
    following = (one for columns in walk.sources.values() for one in columns if one in walk.undecided)
    return next(following, nearest)


def _parts(neighbours: Adjacency, undecided: set[int]) -> list[set[int]]:
    """The connected parts of the undecided variables after the decided variables are removed."""
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


class Chain:
    """Eliminations for a gain and K costs, each the sum of tables over choice indices of V variables."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        gain: Sequence[Table],
        costs: Sequence[Sequence[Table]],
        derived: Sequence[Derived] = (),
    ) -> None:
        """Raise NotANumber if a table has a NaN entry, TooEntangled if no order of the variables has small tables.

        cardinalities: number of choices of each of the V variables. derived: further columns of the tables, which codes do not
        contain.
        """
        if any(np.isnan(values).any() for tables in (gain, *costs) for _, values in tables):
            raise NotANumber("a table has an entry that is no number (NaN)")
        self.variables = len(cardinalities)
        self.cardinalities = tuple(map(int, cardinalities))
        self.constraints = len(costs)
        scopes = {frozenset(columns) for tables in (gain, *costs) for columns, _ in tables}
        self.order = best_order(self.cardinalities, scopes, [one.columns for one in derived])
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

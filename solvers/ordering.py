"""Orders of elimination with small tables.

Once some variables are decided, only their *frontier* matters: the decided variables that share a table with an undecided one.
Deciding a variable takes a table over the frontier and the variable, so that a good order keeps the frontier small.
"""

from collections.abc import Iterable, Sequence
from math import prod

from solvers.errors import TooEntangled

LARGEST_TABLE = 4_000_000
HUBS = 4  # number of most connected variables that an order may begin with

Adjacency = dict[int, set[int]]
"""For each variable, the variables that share a table with it."""


def best_order(
    cardinalities: Sequence[int],
    scopes: Iterable[frozenset[int]],
    derived: Sequence[Sequence[int]] = (),
    groups: Sequence[Sequence[int]] = (),
) -> tuple[int, ...]:
    """The order with the smallest tables among several greedy orders, each of which begins with none or a few of the hubs.

    A hub is one of the variables with the most neighbours. scopes: the columns of each table. derived: for each derived column
    (numbered after the variables), the columns that it follows from. groups: a partition of all variables, decided one group
    after the other instead of beginning with hubs. TooEntangled when no order has small tables.
    """
    count = len(cardinalities)
    neighbours: Adjacency = {column: set() for column in range(count + len(derived))}
    for scope in (*scopes, *(frozenset((*columns, column)) for column, columns in enumerate(derived, start=count))):
        for column in scope:
            neighbours[column] |= scope - {column}
    if groups:
        found = [_by_groups(_Walk(cardinalities, neighbours, derived), groups)]
    else:
        found = _from_hubs(cardinalities, neighbours, derived)
    entries, order = min(found)
    if (
        entries > LARGEST_TABLE * count and not derived
    ):  # derived columns make some states unreachable, so the count is too pessimistic with them
        raise TooEntangled(entries)
    return tuple(order)


def _by_groups(walk: "_Walk", groups: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
    """Entries and order if groups are decided in turn; within a group, the variable with the smallest frontier is next."""
    for group in groups:
        waiting = set(group)
        while waiting:
            nearest = min(waiting, key=lambda one: (walk.size(walk.left(one)), one))
            walk.decide(nearest)
            waiting.remove(nearest)
    return walk.entries, walk.order


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
    part = min(parts, key=lambda one: (walk.size(_left_by(walk, one)), len(one), min(one)))
    return min(part & walk.undecided, key=lambda one: (-len(walk.neighbours[one] & part), one))


def _left_by(walk: _Walk, part: set[int]) -> set[int]:
    """The frontier after a part is decided."""
    rest = walk.unknown - part
    return {one for one in walk.frontier | part if walk.neighbours[one] & rest}


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

"""Orders of elimination with small tables.

Once some variables are decided, only their *frontier* matters: the decided variables that share a table with an undecided one.
Deciding a variable takes a table over the frontier and the variable, so that a good order keeps the frontier small.
"""

from collections.abc import Iterable, Sequence
from math import prod

from solvers.errors import TooEntangled

LARGEST_TABLE = 4_000_000
HUBS = 4  # variables of most tables that an order may begin with

Adjacency = dict[int, set[int]]
"""For each variable those that share a table with it."""


def best_order(cardinalities: Sequence[int], scopes: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """The order with the smallest tables of several greedy ones, which begin with none or a few of the hubs.

    A hub is one of the variables with most neighbours. scopes: of the tables. TooEntangled when no order has small tables.
    """
    neighbours: Adjacency = {variable: set() for variable in range(len(cardinalities))}
    for scope in scopes:
        for variable in scope:
            neighbours[variable] |= scope - {variable}
    hubs = sorted(neighbours, key=lambda variable: -len(neighbours[variable]))
    found = [
        _greedy(cardinalities, neighbours, hubs[:count], by_parts)
        for count in range(min(HUBS, len(hubs)) + 1)
        for by_parts in (False, True)
    ]
    entries, order = min(found)
    if entries > LARGEST_TABLE * len(cardinalities):
        raise TooEntangled(entries)
    return tuple(order)


def _greedy(
    cardinalities: Sequence[int], neighbours: Adjacency, first: Sequence[int], by_parts: bool
) -> tuple[int, list[int]]:
    """An order and the entries of all its tables. It begins with `first`, then always leaves the smallest frontier.

    by_parts: the decided variables cut the undecided ones into parts; one part is finished after the other, its hub first.
    """
    order: list[int] = []
    frontier: set[int] = set()
    undecided = set(neighbours)
    entries = 0

    def left(decided: set[int]) -> set[int]:
        return {one for one in frontier | decided if neighbours[one] & (undecided - decided)}

    def size(variables: set[int]) -> int:
        return prod(cardinalities[one] for one in variables)

    while undecided:
        if len(order) < len(first):
            chosen = first[len(order)]
        elif by_parts:
            part = min(_parts(neighbours, undecided), key=lambda one: (size(left(one)), len(one), min(one)))
            chosen = min(part, key=lambda one: (-len(neighbours[one] & part), one))
        else:
            chosen = min(_near(frontier, neighbours, undecided), key=lambda one: (size(left({one})), one))
        entries += size(frontier | {chosen})
        order.append(chosen)
        frontier = left({chosen})
        undecided.remove(chosen)
    return entries, order


def _parts(neighbours: Adjacency, undecided: set[int]) -> list[set[int]]:
    """The undecided variables as connected parts, the decided variables taken away."""
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


def _near(frontier: set[int], neighbours: Adjacency, undecided: set[int]) -> set[int]:
    """The undecided neighbours of the frontier; all undecided variables where it has none."""
    return set().union(*(neighbours[one] for one in frontier)) & undecided or undecided

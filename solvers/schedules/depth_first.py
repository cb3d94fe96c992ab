"""Orders that run what a step needs right before it: all that some runtimes keep of a given order.

Such an order is told by what each step visits first of the steps that it needs. Local search over these visits finds good ones.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import NamedTuple

from solvers.schedules.workload import Workload, bits

POWER = 16  # a sum of high powers: its largest summand decides, and the next ones where that is equal
MOST_PERMUTED = 3  # all permutations of so few; of more, each one is moved to each place
LEAST_GAIN = 1e-9

Visits = list[tuple[int, ...]]
"""For each step, those that it needs, in the order in which they are visited."""


class OrderCost(NamedTuple):
    """total: a sum over all moments, which also tells apart orders of one peak."""

    total: float
    peak_bytes: int


def cost_of(live: Iterable[int]) -> OrderCost:
    """Of the bytes at each moment."""
    moments = tuple(live)
    return OrderCost(sum(float(bytes_) ** POWER for bytes_ in moments), max(moments, default=0))


def visits_like(load: Workload, order: Iterable[int]) -> Visits:
    """Visits in the order in which another order runs the steps."""
    rank = {step: at for at, step in enumerate(order)}
    return [tuple(sorted(bits(before), key=rank.__getitem__)) for before in load.before]


def visited(visits: Sequence[Iterable[int]], ends: Iterable[int]) -> tuple[int, ...]:
    """The steps in order. ends: those that no other step needs, in the order in which they are visited."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [(step, False) for step in reversed(tuple(ends))]
    while stack:
        step, complete = stack.pop()
        if complete:
            order.append(step)
        elif step not in seen:
            seen.add(step)
            stack.append((step, True))
            stack += [(before, False) for before in reversed(tuple(visits[step]))]
    return tuple(order)


def improved(
    visits: Visits, cost: Callable[[Visits], OrderCost], enough_bytes: int, tries: int
) -> tuple[Visits, OrderCost]:
    """The visits with the least peak among those that were tried: changed at one step after the other as long as that helps.

    enough_bytes: a peak at which nothing more is tried.
    """
    now = list(visits)
    lowest = cost(now)
    best, least = lowest, list(now)
    joins = [step for step, before in enumerate(now) if len(before) > 1]
    while True:
        begun = lowest
        for join in joins:
            kept = now[join]
            for other in _changed(kept):
                if best.peak_bytes <= enough_bytes or tries == 0:
                    return least, best
                tries -= 1
                now[join] = other
                found = cost(now)
                if (found.peak_bytes, found.total) < (best.peak_bytes, best.total):
                    best, least = found, list(now)
                if found.total < lowest.total * (1 - LEAST_GAIN):
                    lowest, kept = found, other
            now[join] = kept
        if lowest == begun:
            return least, best


def _changed(visits: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    if len(visits) <= MOST_PERMUTED:
        return [other for other in permutations(visits) if other != visits]
    moved = []
    for at, step in enumerate(visits):
        rest = visits[:at] + visits[at + 1 :]
        moved += [(*rest[:to], step, *rest[to:]) for to in range(len(visits)) if to != at]
    return moved

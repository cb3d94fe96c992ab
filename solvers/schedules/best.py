"""The order of steps with the least peak: exact if the search ends in time, else the best of several.

A step that every other step comes either before or after cuts the steps into parts. Any order finishes one part before the
next, so each part is ordered separately.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from solvers.schedules.exact import least_peak
from solvers.schedules.heuristics import Order, orders
from solvers.schedules.workload import Done, Workload, bits

VISITS = 20_000  # sets of completed steps, for each part


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """order: positions of the steps. bound_bytes: no order has a lower peak."""

    order: tuple[int, ...]
    peak_bytes: int
    bound_bytes: int

    @property
    def optimal(self) -> bool:
        """Whether the peak equals the lower bound, so that no order can be better."""
        return self.peak_bytes == self.bound_bytes


def best_order(load: Workload, visits: int = VISITS, known: Iterable[Order] = ()) -> Schedule:
    """An order that is never worse than the given one. visits: the most sets of completed steps to visit, for each part.

    known: more orders to choose from.
    """
    found: list[int] = []
    peak = bound = start = 0
    known = tuple(known)
    for goal in load.cuts():
        part = _part(
            load, start, goal, visits, [tuple(s for s in order if s in set(bits(goal & ~start))) for order in known]
        )
        found += part.order
        peak, bound, start = max(peak, part.peak_bytes), max(bound, part.bound_bytes), goal
    return Schedule(order=tuple(found), peak_bytes=peak, bound_bytes=bound)


def _part(load: Workload, start: Done, goal: Done, visits: int, known: Iterable[Order]) -> Schedule:
    bound = max(load.live(start), *(load.least_during(step) for step in bits(goal & ~start)))
    order, peak = None, 0
    for other in (*orders(load, start, goal), *known):
        found = load.peak(other, start)
        if order is None or found < peak:
            order, peak = other, found
        if peak == bound:
            break
    assert order is not None
    proven = least_peak(load, start, goal, bound, peak, visits)
    if proven.order is not None:
        order, peak = proven.order, proven.bound_bytes
    return Schedule(order=order, peak_bytes=peak, bound_bytes=proven.bound_bytes)

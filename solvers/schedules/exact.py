"""The least peak by search over sets of completed steps.

For a limit of bytes, all reachable sets are visited depth first. When none is left, the limit rises to the least of the peaks
that exceeded it, so the first order found has the least peak. The search stays small because bytes alive are submodular. When a
set is reached with no more bytes alive than an earlier set X on the way had, the minimal set U between both
(`solvers.schedules.cuts`) can be reached within the limit, too, and every order that continues from X can continue from U.
Therefore no other continuation of X is visited.

Proof. f: bytes alive. For a closed set T after X: f(T ∪ U) ≤ f(T) + f(U) - f(T ∩ U) ≤ f(T), since f(T ∩ U) ≥ f(U) between X
and U; so the rest of an order, without the steps of U, needs no more after U. For a set R on the way to U's end:
f(R ∩ U) ≤ f(R), in the same way. While a step runs there are the bytes after it and those that it frees and does not write
over; these are never fewer for a larger set, so that both also hold for peaks.
Source of the search over sets: Ahn et al., Ordering Chaos, MLSys 2020 (Serenity).
"""

from bisect import bisect_left
from dataclasses import dataclass
from math import inf

from solvers.schedules.cuts import least_live
from solvers.schedules.workload import Done, Workload, bits


@dataclass(slots=True)
class _Visit:
    """A set on the current path. path: the steps from the previous set. moves: steps still to try, the best one last."""

    done: Done
    live: int
    ready: Done
    path: list[int]
    moves: list[int]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search. order: None if the visits did not suffice. No order has a peak below `bound_bytes`."""

    order: tuple[int, ...] | None
    bound_bytes: int
    visits: int


class _Search:
    def __init__(self, load: Workload, goal: Done, limit: int, visits: int) -> None:
        self.load, self.goal, self.limit = load, goal, limit
        self.left = visits
        self.kept_out: float = inf  # the least peak that exceeded the limit
        self.seen: set[Done] = set()

    def visit(self, done: Done, live: int, ready: Done, path: list[int]) -> _Visit:
        moves = []
        for step in bits(ready):
            during, after = self.load.run(step, done, live)
            if during <= self.limit:
                moves.append((-after, -during, -step))
            else:
                self.kept_out = min(self.kept_out, during)
        return _Visit(done, live, ready, path, [-step for _, _, step in sorted(moves)])

    def walk(self, start: _Visit) -> tuple[bool, list[_Visit]]:
        """Whether the goal was reached, and the sets on the way.

        If the goal was not reached, all orders can continue from the first set.
        """
        way = [start]
        while way[-1].done != self.goal:
            top = way[-1]
            if not top.moves:
                if len(way) == 1:
                    return False, way
                way.pop()
                continue
            step = top.moves.pop()
            done = top.done | 1 << step
            if done in self.seen:
                continue
            if not self.left:
                return False, way
            self.left -= 1
            self.seen.add(done)
            _, live = self.load.run(step, top.done, top.live)
            ready = self.load.ready_after(step, top.ready, done, self.goal)
            way.append(self.visit(done, live, ready, [step]))
            self._commit(way)
        return True, way

    def _commit(self, way: list[_Visit]) -> None:
        """Replace the sets from the first one that has no fewer bytes alive than the last, by the minimal set in between."""
        while True:
            last = way[-1]
            at = bisect_left(way, last.live, hi=len(way) - 1, key=lambda visit: visit.live)
            if at == len(way) - 1:
                return
            first, dropped = way[at], way[at + 1 :]
            path = [step for visit in dropped for step in visit.path]
            least = last.done if len(path) == 1 else least_live(self.load, first.done, last.done)
            if least in (first.done, last.done):  # if the first ties, the last has more steps done
                last.path = first.path + path
                way[at:] = [last]
                return
            self.seen.difference_update(visit.done for visit in dropped)  # they can be reached again
            kept = [step for step in path if least >> step & 1]
            ready = self.load.ready(least, self.goal)
            way[at:] = [self.visit(least, self.load.live(least), ready, first.path + kept)]


def least_peak(load: Workload, start: Done, goal: Done, bound_bytes: int, below_bytes: int, visits: int) -> Found:
    """The order with the least peak from one set of completed steps to another, if its peak is below `below_bytes`.

    bound_bytes: a lower bound of the peak. visits: the most sets to visit.
    """
    done, live, path = start, load.live(start), list[int]()
    limit, left = max(bound_bytes, live), visits
    while limit < below_bytes:
        search = _Search(load, goal, limit, left)
        found, way = search.walk(search.visit(done, live, load.ready(done, goal), path))
        left = search.left
        if found:
            order = tuple(step for visit in way for step in visit.path)
            return Found(order, limit, visits - left)
        if not left:
            return Found(None, limit, visits)
        assert search.kept_out > limit
        done, live, path = way[0].done, way[0].live, way[0].path
        limit = int(min(search.kept_out, below_bytes))
    return Found(None, limit, visits - left)

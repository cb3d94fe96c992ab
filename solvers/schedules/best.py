"""The order of steps with the least peak: exact if the search ends in time, else the best of several orders.

Orders without exhaustive search are depth first, greedy, and beam search. A step that every other step comes either
before or after cuts the steps into parts. Any order finishes one part before the next, so each part is ordered
separately.

The bytes alive are a submodular function of the set of completed steps: a buffer is alive if its maker is completed and
not all of its users are. The moment with the least memory between two moments is therefore a minimum cut (Picard 1976),
found by augmenting paths.

For a limit of bytes, all reachable sets are visited depth first. When none is left, the limit rises to the least of the
peaks that exceeded it, so the first order found has the least peak. The search stays small because bytes alive are
submodular. When a set is reached with no more bytes alive than an earlier set X on the way had, the minimal set U
between both can be reached within the limit, too, and every order that continues from X can continue from U. Therefore
no other continuation of X is visited.

Proof. f: bytes alive. For a closed set T after X: f(T ∪ U) ≤ f(T) + f(U) - f(T ∩ U) ≤ f(T), since f(T ∩ U) ≥ f(U)
between X and U; so the rest of an order, without the steps of U, needs no more after U. For a set R on the way to U's
end: f(R ∩ U) ≤ f(R), in the same way. While a step runs there are the bytes after it and the bytes that it frees and
does not write over; these are never fewer for a larger set, so that both also hold for peaks. Source of the search over
sets: Ahn et al., Ordering Chaos, MLSys 2020 (Serenity).
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from math import inf

from solvers.schedules.workload import Done, Workload, bits

Vertex = int | str | tuple[str, int]
SOURCE, SINK = "source", "sink"


class _Network:
    """A flow network: the residual capacity from each vertex to another."""

    def __init__(self) -> None:
        self.left: defaultdict[Vertex, dict[Vertex, int]] = defaultdict(dict)

    def add(self, tail: Vertex, head: Vertex, bytes_: int) -> None:
        if tail != head:
            self.left[tail][head] = self.left[tail].get(head, 0) + bytes_
            self.left[head].setdefault(tail, 0)

    def reached(self) -> dict[Vertex, Vertex]:
        """Vertices that can receive more flow from the source, each with its predecessor; stops at the sink."""
        before: dict[Vertex, Vertex] = {SOURCE: SOURCE}
        waiting = deque[Vertex]([SOURCE])
        while waiting and SINK not in before:
            vertex = waiting.popleft()
            for head, left in self.left[vertex].items():
                if left and head not in before:
                    before[head] = vertex
                    waiting.append(head)
        return before

    def saturate(self) -> dict[Vertex, Vertex]:
        """Send as much flow as possible; return the source's side of the smallest minimum cut."""
        while SINK in (before := self.reached()):
            path: list[Vertex] = [SINK]
            while path[-1] != SOURCE:
                path.append(before[path[-1]])
            pairs = list(zip(path[1:], path, strict=False))
            sent = min(self.left[tail][head] for tail, head in pairs)
            for tail, head in pairs:
                self.left[tail][head] -= sent
                self.left[head][tail] += sent
        return before


def least_live(load: Workload, start: Done, end: Done) -> Done:
    """Among all closed sets between `start` and `end`, the one with the least bytes alive; the smallest of equal ones."""
    between = end & ~start
    unlimited = 1 + sum(load.bytes_[buffer] for buffer in load.producer)
    network = _Network()

    def vertex(step: int) -> Vertex:
        if start >> step & 1:
            return SOURCE
        return step if end >> step & 1 else SINK

    for step in bits(between):
        for earlier in bits(load.before[step] & between):
            network.add(step, earlier, unlimited)  # a step implies the steps before it
    for buffer, producer in load.producer.items():
        # other buffers are the same for every set between start and end
        if not (load.users[buffer] & between) or vertex(producer) == SINK:
            continue
        ended = ("ended", buffer)
        network.add(vertex(producer), ended, load.bytes_[buffer])
        for user in bits(load.users[buffer]):
            network.add(ended, vertex(user), unlimited)
        if buffer in load.kept:
            network.add(ended, SINK, unlimited)
    side = network.saturate()
    return start | sum(1 << step for step in bits(between) if step in side)


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


BEAM = 32  # partial orders kept at once
Order = tuple[int, ...]


def orders(load: Workload, start: Done, goal: Done) -> Iterator[Order]:
    """Orders from one set of completed steps to another, the given one first."""
    yield tuple(bits(goal & ~start))
    for weight in (lambda step: step, lambda step: -step, lambda step: -load.least_during(step)):
        yield depth_first(load, start, goal, weight)
    yield greedy(load, start, goal)
    yield beam(load, start, goal)


def depth_first(load: Workload, start: Done, goal: Done, weight: Callable[[int], int]) -> Order:
    """Depth first: the steps that a step needs run right before it, in ascending order of weight."""
    order: list[int] = []
    done = start
    ends = [step for step in bits(goal & ~start) if not load.after[step] & goal]
    stack = [(step, False) for step in sorted(ends, key=weight, reverse=True)]
    while stack:
        step, complete = stack.pop()
        if done >> step & 1:
            continue
        if complete:
            order.append(step)
            done |= 1 << step
            continue
        stack.append((step, True))
        needed = sorted(bits(load.before[step] & ~done), key=weight, reverse=True)
        stack += [(before, False) for before in needed]
    return tuple(order)


def greedy(load: Workload, start: Done, goal: Done) -> Order:
    """Always the step that leaves the least memory; among equal ones, the one that takes the least while it runs."""
    order: list[int] = []
    done, live, ready = start, load.live(start), load.ready(start, goal)
    while ready:
        live, _, step = min((*reversed(load.run(step, done, live)), step) for step in bits(ready))
        order.append(step)
        done |= 1 << step
        ready = load.ready_after(step, ready, done, goal)
    return tuple(order)


@dataclass(frozen=True, slots=True)
class _Partial:
    """A partial order."""

    peak: int
    live: int
    done: Done
    ready: Done
    steps: Order


def beam(load: Workload, start: Done, goal: Done, width: int = BEAM) -> Order:
    """Beam search: keeps the partial orders of one length with the least peak; among equal ones, the fewest bytes alive."""
    level = [_Partial(0, load.live(start), start, load.ready(start, goal), ())]
    while level[0].ready:
        found: dict[Done, tuple[int, int, _Partial, int]] = {}
        for one in level:
            for step in bits(one.ready):
                during, live = load.run(step, one.done, one.live)
                done, peak = one.done | 1 << step, max(one.peak, during)
                if done not in found or peak < found[done][0]:
                    found[done] = peak, live, one, step
        kept = nsmallest(width, ((peak, live, done) for done, (peak, live, _, _) in found.items()))
        level = []
        for peak, live, done in kept:
            _, _, one, step = found[done]
            level.append(_Partial(peak, live, done, load.ready_after(step, one.ready, done, goal), (*one.steps, step)))
    return level[0].steps


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

"""Orders found without exhaustive search: depth first, greedy, and beam search."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from solvers.schedules.workload import Done, Workload, bits

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

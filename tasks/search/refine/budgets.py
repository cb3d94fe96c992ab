"""Budgets that the search made, moved to SubNets of the measured front.

The search makes budgets from predictions, at equal ratios. By measurement some are useless: their winner is that of a smaller
budget, or no SubNet keeps them. Each of these is moved to a SubNet of the measured front that no other budget has: to the one
that adds most to the area under the front (latency as its logarithm). They are moved one after the other: greedy, as in
Guerreiro, Fonseca and Paquete, Evolutionary Computation 24 (2016). Budgets that a user gave are never moved.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from tasks.base.schemas.front import Front
from tasks.search.feasible import round_up
from tasks.search.refine.known import Known, Latencies, winners
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import LEAST_BUDGET


def settled(
    fronts: Sequence[Front], known: Collection[Known], budgets_ms: Sequence[Latencies], margin: float
) -> list[Latencies]:
    """The budgets of a refinement, given its evaluated candidates: moved if the search made them for one device.
    fronts: of the search, one for each device. known: the evaluated candidates. margin: share of a budget that is left free.
    """
    (front, *others) = fronts
    if others or SearchSettings.model_validate(front.settings).budgets_of(front.device) is not None:
        return list(budgets_ms)
    return [(budget_ms,) for budget_ms in moved(known, [budget_ms for (budget_ms,) in budgets_ms], margin)]


def moved(known: Collection[Known], budgets_ms: Sequence[float], margin: float) -> list[float]:
    """The budgets [ms] of one device, ascending, each with a winner of its own if the front has enough SubNets.

    Further budgets stay unchanged; budgets that no SubNet keeps are left out. All stay unchanged if nothing is known, or if no
    SubNet keeps any.
    """
    front = _front(known)
    if not front:
        return list(budgets_ms)
    kept = [budget_ms for budget_ms in sorted(budgets_ms) if _sure_ms(front[0]) <= (1 - margin) * budget_ms]
    if not kept and _sure_ms(front[0]) > max(budgets_ms):
        return sorted(budgets_ms)  # the fastest SubNet wins, and misses them
    chosen = winners(known, [(budget_ms,) for budget_ms in kept], margin)
    held = {one.accuracy.share: budget_ms for one, budget_ms in reversed(list(zip(chosen, kept, strict=True)))}
    while len(held) < len(budgets_ms):
        gains = _gains(front, held.keys(), max(budgets_ms))
        number = int(np.argmax(gains))
        if gains[number] <= 0:
            break
        held[front[number].accuracy.share] = _budget_ms(front, number, margin)
    further = [budget_ms for budget_ms in kept if budget_ms not in held.values()]
    return sorted([*held.values(), *further[: len(budgets_ms) - len(held)]])


def _front(known: Collection[Known]) -> list[Known]:
    """The candidates that are more accurate than all candidates at most as slow, by increasing latency."""
    found: list[Known] = []
    for one in sorted(known, key=lambda one: (_sure_ms(one), -one.accuracy.share)):
        if not found or one.accuracy.share > found[-1].accuracy.share:
            found.append(one)
    return found


def _sure_ms(one: Known) -> float:
    return one.sure_ms[0]


def _gains(front: Sequence[Known], held: Collection[float], most_ms: float) -> list[float]:
    """The area that each SubNet of the front adds to the area under the held SubNets; 0 for the held ones, given by accuracy.
    most_ms: the latency at which the area ends.
    """
    gains = []
    for number, one in enumerate(front):
        share, own_ms = one.accuracy.share, _sure_ms(one)
        below = max((lower for lower in held if lower < share), default=0.0)
        until_ms = next((_sure_ms(other) for other in front[number:] if other.accuracy.share in held), most_ms)
        gains.append(max(math.log(until_ms / own_ms) * (share - below), 0.0))
    return gains


def _budget_ms(front: Sequence[Known], number: int, margin: float) -> float:
    """The budget of a SubNet of the front: a little above its latency, and below the next SubNet's."""
    own_ms = _sure_ms(front[number])
    next_ms = [_sure_ms(one) for one in front[number + 1 : number + 2]]
    most_ms = min([LEAST_BUDGET * own_ms, *(math.sqrt(own_ms * other_ms) for other_ms in next_ms)])
    return round_up(max(most_ms, own_ms / (1 - margin)))

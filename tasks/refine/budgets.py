"""Budgets that the search made, moved to where the measured front has SubNets.

The search makes budgets from predictions, at equal ratios. By measurement some buy nothing: their winner is that of a smaller
budget, or no SubNet keeps them. Each of these goes to a SubNet of the measured front that no other budget has: of several to
the one that adds most to the area under the front (latency as its logarithm). They are taken one after the other: greedy, as in
Guerreiro, Fonseca and Paquete, Evolutionary Computation 24 (2016). Budgets that a user gave are never moved.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from tasks.refine.known import Known, Latencies, winners
from tasks.schemas.front import Front
from tasks.search.feasible import round_up
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import LEAST_BUDGET


def settled(
    fronts: Sequence[Front], known: Collection[Known], budgets_ms: Sequence[Latencies], margin: float
) -> list[Latencies]:
    """The budgets of a refinement by what is known of its candidates: moved where the search made them for one device.

    fronts: of the search, one for each device. known: the evaluated candidates. margin: of a budget, left free.
    """
    (front, *others) = fronts
    if others or SearchSettings.model_validate(front.settings).budgets_of(front.device) is not None:
        return list(budgets_ms)
    return [(budget_ms,) for budget_ms in moved(known, [budget_ms for (budget_ms,) in budgets_ms], margin)]


def moved(known: Collection[Known], budgets_ms: Sequence[float], margin: float) -> list[float]:
    """The budgets [ms] of one device, ascending, each with a winner of its own where the front has as many SubNets.

    Further budgets stay where they were; those that no SubNet keeps are left out. All stay where nothing is known, or
    where no SubNet keeps any.
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
    """The candidates that are more accurate than all that are as fast, by rising latency."""
    found: list[Known] = []
    for one in sorted(known, key=lambda one: (_sure_ms(one), -one.accuracy.share)):
        if not found or one.accuracy.share > found[-1].accuracy.share:
            found.append(one)
    return found


def _sure_ms(one: Known) -> float:
    return one.sure_ms[0]


def _gains(front: Sequence[Known], held: Collection[float], most_ms: float) -> list[float]:
    """By how much each SubNet of the front adds to the area under those that are held; 0 for these, by their accuracies.

    most_ms: the latency where the area ends.
    """
    gains = []
    for number, one in enumerate(front):
        share, own_ms = one.accuracy.share, _sure_ms(one)
        below = max((lower for lower in held if lower < share), default=0.0)
        until_ms = next((_sure_ms(other) for other in front[number:] if other.accuracy.share in held), most_ms)
        gains.append(max(math.log(until_ms / own_ms) * (share - below), 0.0))
    return gains


def _budget_ms(front: Sequence[Known], number: int, margin: float) -> float:
    """Of a SubNet of the front: a little above its latency, and below the next one's."""
    own_ms = _sure_ms(front[number])
    next_ms = [_sure_ms(one) for one in front[number + 1 : number + 2]]
    most_ms = min([LEAST_BUDGET * own_ms, *(math.sqrt(own_ms * other_ms) for other_ms in next_ms)])
    return round_up(max(most_ms, own_ms / (1 - margin)))

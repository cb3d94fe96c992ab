"""Candidates with measured latency and accuracy, the best within each budget, and budgets moved to the measured front.

The search makes budgets from predictions, at equal ratios. By measurement some are useless: they share the winner of a
smaller budget, or no SubNet keeps them. Each useless budget is moved to a SubNet of the measured front that no other
budget has: to the SubNet that adds most to the area under the front (latency as its logarithm). They are moved one
after the other: greedy, as in Guerreiro, Fonseca and Paquete, Evolutionary Computation 24 (2016). Budgets that a user
gave are never moved.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from profiling_agents.messages import Measurement
from tasks.base.schemas.winners import Front
from tasks.evaluation.subnets import Accuracy
from tasks.search.feasibility import round_up
from tasks.search.settings import Settings as SearchSettings
from tasks.search.stage import LEAST_BUDGET

EVALUATED_FILE = "evaluated.jsonl"

Latencies = tuple[float, ...]
"""Latencies of one SubNet on each device, or their limits [ms]."""


@dataclass(frozen=True, slots=True)
class Known:
    """A candidate by its digest: its measured latencies, its latencies smoothed over similar SubNets [ms], and its accuracy."""

    digest: str
    ms: Latencies
    smoothed_ms: Latencies
    accuracy: Accuracy

    @property
    def sure_ms(self) -> Latencies:
        """The larger of measured and smoothed latency [ms], on each device."""
        return tuple(map(max, self.ms, self.smoothed_ms))

    def rank(self, budgets_ms: Latencies) -> tuple[float, float, float]:
        """The sort key: the larger rank is the better candidate."""
        return self.accuracy.share, -self.accuracy.loss, -taken(self.ms, budgets_ms)


def taken(ms: Latencies, budgets_ms: Latencies) -> float:
    """The largest share of its budget that a SubNet takes on any device."""
    return max(own_ms / budget_ms for own_ms, budget_ms in zip(ms, budgets_ms, strict=True))


def within(ms: Latencies, budgets_ms: Latencies) -> bool:
    """Whether a SubNet keeps the budgets of all devices."""
    return all(own_ms <= budget_ms for own_ms, budget_ms in zip(ms, budgets_ms, strict=True))


def best(known: Collection[Known], budgets_ms: Latencies, margin: float) -> Known:
    """The best candidate whose `sure_ms` are within the budgets less the margin, else the best within the budgets.

    If no `sure_ms` are within the budgets: the best candidate with measured latencies within them, else the nearest one, which
    on one device is the fastest.
    """
    reduced_ms = tuple((1 - margin) * budget_ms for budget_ms in budgets_ms)
    ways = (
        [one for one in known if within(one.sure_ms, reduced_ms)],
        [one for one in known if within(one.sure_ms, budgets_ms)],
        [one for one in known if within(one.ms, budgets_ms)],
        [min(known, key=lambda one: taken(one.ms, budgets_ms))],
    )
    return max(next(filter(None, ways)), key=lambda one: one.rank(budgets_ms))


def winners(known: Collection[Known], budgets_ms: Sequence[Latencies], margin: float) -> list[Known]:
    """The winner of each budget: its `best`, or a smaller budget's if that ranks higher; a larger budget's is never worse."""
    own = [(ms, best(known, ms, margin)) for ms in budgets_ms]

    def winner(asked_ms: Latencies, first: Known) -> Known:
        smaller = [one for ms, one in own if within(ms, asked_ms) and within(one.ms, ms)]
        return max([first, *smaller], key=lambda one: one.rank(asked_ms))

    return [winner(ms, first) for ms, first in own]


def known_ms(timed: Sequence[Mapping[str, Measurement]]) -> dict[str, Latencies]:
    """Latencies [ms] by digest, of the candidates that were measured on every device. timed: of each device, by digest."""
    found = {}
    for digest in timed[0]:
        ms = tuple(own.p50_ms for one in timed if (own := one.get(digest)) is not None and own.p50_ms is not None)
        if len(ms) == len(timed):
            found[digest] = ms
    return found


def worth_evaluating(timed_ms: Mapping[str, Latencies], budgets_ms: Sequence[Latencies]) -> list[str]:
    """Digests of the candidates to evaluate: those within some budget, else the nearest to one."""
    shares = {digest: min(taken(ms, budget_ms) for budget_ms in budgets_ms) for digest, ms in timed_ms.items()}
    most = max(1.0, min(shares.values(), default=1.0))
    return [digest for digest, share in shares.items() if share <= most]


def settled(
    fronts: Sequence[Front], known: Collection[Known], budgets_ms: Sequence[Latencies], margin: float
) -> list[Latencies]:
    """The budgets of a refinement, given its evaluated candidates: moved if the search made them for one device."""
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
    (fastest_ms,) = front[0].sure_ms
    kept = [budget_ms for budget_ms in sorted(budgets_ms) if fastest_ms <= (1 - margin) * budget_ms]
    if not kept and fastest_ms > max(budgets_ms):
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
    for one in sorted(known, key=lambda one: (one.sure_ms, -one.accuracy.share)):
        if not found or one.accuracy.share > found[-1].accuracy.share:
            found.append(one)
    return found


def _gains(front: Sequence[Known], held: Collection[float], most_ms: float) -> list[float]:
    """The area up to `most_ms` that each SubNet of the front adds to that under the held SubNets, given by accuracy."""
    gains = []
    for number, one in enumerate(front):
        share, own_ms = one.accuracy.share, one.sure_ms[0]
        below = max((lower for lower in held if lower < share), default=0.0)
        until_ms = next((other.sure_ms[0] for other in front[number:] if other.accuracy.share in held), most_ms)
        gains.append(max(math.log(until_ms / own_ms) * (share - below), 0.0))
    return gains


def _budget_ms(front: Sequence[Known], number: int, margin: float) -> float:
    """The budget of a SubNet of the front: a little above its latency, and below the next SubNet's."""
    own_ms = front[number].sure_ms[0]
    next_ms = [one.sure_ms[0] for one in front[number + 1 : number + 2]]
    most_ms = min([LEAST_BUDGET * own_ms, *(math.sqrt(own_ms * other_ms) for other_ms in next_ms)])
    return round_up(max(most_ms, own_ms / (1 - margin)))

"""Candidates with measured latency and accuracy, and the best candidate within a budget."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.messages import Measurement
from tasks.base.artifacts import SubNetLines, SubNetStore
from tasks.base.progress import Progress
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracy_lines

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
    careful_ms = tuple((1 - margin) * budget_ms for budget_ms in budgets_ms)
    ways = (
        [one for one in known if within(one.sure_ms, careful_ms)],
        [one for one in known if within(one.sure_ms, budgets_ms)],
        [one for one in known if within(one.ms, budgets_ms)],
        [min(known, key=lambda one: taken(one.ms, budgets_ms))],
    )
    return max(next(filter(None, ways)), key=lambda one: one.rank(budgets_ms))


def winners(known: Collection[Known], budgets_ms: Sequence[Latencies], margin: float) -> list[Known]:
    """The winner of each budget: its `best`, or a smaller budget's winner if that ranks higher (it keeps both budgets).
    A larger budget therefore never has the worse winner, whatever the margin excluded in either.
    """
    own = [(ms, best(known, ms, margin)) for ms in budgets_ms]

    def winner(asked_ms: Latencies, first: Known) -> Known:
        smaller = [one for ms, one in own if within(ms, asked_ms) and within(one.ms, ms)]
        return max([first, *smaller], key=lambda one: one.rank(asked_ms))

    return [winner(ms, first) for ms, first in own]


def evaluated_lines(
    store: SubNetStore, supernet: Path, images: EvaluationData, out: Path, progress: Progress
) -> SubNetLines:
    """Accuracies of candidates on validation images."""
    return accuracy_lines(store, supernet, "validation", images, out / EVALUATED_FILE, progress)


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

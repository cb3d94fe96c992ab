"""The SubNet, and the exit up to which it runs, within a latency budget: the best measured choice, with or without exits."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

NO_EXIT = -1


class ExitChoice(NamedTuple):
    """A SubNet, run up to one of its exits. accuracy: fraction, measured; latency_ms: up to the exit, measured on device."""

    subnet: int
    exit: int
    """`NO_EXIT`: the SubNet without any exit."""
    accuracy: float
    latency_ms: float


def best_within(choices: Sequence[ExitChoice], budget_ms: float) -> ExitChoice | None:
    """The most accurate choice within a budget, among equal ones the fastest, then one without exits. None if nothing fits."""
    fitting = [choice for choice in choices if choice.latency_ms <= budget_ms]
    return min(fitting, key=_worse, default=None)


def _worse(choice: ExitChoice) -> tuple[float, float, bool]:
    return -choice.accuracy, choice.latency_ms, choice.exit != NO_EXIT


class ResourcePolicy:
    """`best_within` for many budgets: a look-up among the choices that are best for some budget."""

    def __init__(self, choices: Sequence[ExitChoice]) -> None:
        self.best: list[ExitChoice] = []
        for choice in sorted(choices, key=lambda each: (each.latency_ms, *_worse(each))):
            if not self.best or choice.accuracy > self.best[-1].accuracy:
                self.best.append(choice)
        self._latencies = [choice.latency_ms for choice in self.best]

    def choose(self, budget_ms: float) -> ExitChoice | None:
        """The best choice within a budget [ms]; None if nothing fits."""
        place = bisect_right(self._latencies, budget_ms)
        return self.best[place - 1] if place else None

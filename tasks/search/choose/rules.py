"""Rules that choose one SubNet among the winners of a search for the budgets of one device.

Latencies [ms] on the device are predictions. Accuracies (fractions, validation split) are predictions, too, unless the search
measured them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.base.errors import UserError
from tasks.base.schemas.front import Front, Winner

RuleKind = Literal["budget_ms", "accuracy_share", "knee"]
ENOUGH = 1.001
"""If two budgets are within this ratio, no cheaper SubNet is searched for between them."""
BUDGETS = 12
ROUNDS = 6
FEWEST = 3
"""Smallest number of SubNets for which a front has a knee."""


@dataclass(frozen=True, slots=True)
class WinnerRule:
    """A rule by its kind. budget_ms: the best SubNet within `value` ms. knee: the knee of the front; `value` is unused.

    accuracy_share: the cheapest SubNet with at least the share `value` of the base accuracy.
    """

    kind: RuleKind
    value: float = 0.0

    @property
    def text(self) -> str:
        """Description for people."""
        match self.kind:
            case "budget_ms":
                return f"the best within {self.value:g} ms"
            case "accuracy_share":
                return f"the cheapest with at least {100 * self.value:g} % of the base accuracy"
        return "the knee of the front"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a finished run: one SubNet by a rule, two side by side (`tasks.search.choose.pick`), or files of SubNets.

    files: files of chosen SubNets, to be exported.
    """

    rule: WinnerRule | None = None
    pair: tuple[str, str] | None = None
    files: tuple[str, ...] = ()


def choose(rule: WinnerRule, found: Front, base_accuracy: float) -> Winner:
    """The winner that a rule chooses; UserError if none fits. If the rule is a budget, the search was for this budget."""
    if rule.kind == "budget_ms":
        return next(row for row in found.winners if row.budget_ms == rule.value)
    if rule.kind == "knee":
        return knee(front(found), found.device)
    return cheapest(rule, found.winners, base_accuracy, found.device)


def front(found: Front) -> list[Winner]:
    """Winners on the front, each once, by rising latency."""
    rows = {row.digest: row for row in found.winners if row.digest in found.front}
    return sorted(rows.values(), key=lambda row: row.predicted_ms)


def knee(rows: Sequence[Winner], device: str) -> Winner:
    """The point farthest above the line through both ends of a front, with both axes scaled to the ends' distance.

    Source: Das, "On characterizing the 'knee' of the Pareto curve based on normal-boundary intersection" (Structural
    Optimization 18, 1999); with scaled axes it is the maximum of the difference curve of Kneedle (Satopää et al., ICDCS
    Workshops 2011). UserError when the front has no such point.
    """
    where, next_step = f"knee on '{device}'", "take --budget-ms, or more budgets: search.budget_count=40"
    if len(rows) < FEWEST:
        raise UserError(where, f"the front has {len(rows)} SubNets", allowed=f"{FEWEST} or more", next_step=next_step)
    first, last = rows[0], rows[-1]
    wide_ms = last.predicted_ms - first.predicted_ms
    high = last.accuracy - first.accuracy
    if not (wide_ms > 0 and high > 0):
        raise UserError(where, "the slowest SubNet of the front is no better than the fastest", next_step=next_step)

    def above(row: Winner) -> float:
        gained = (row.accuracy - first.accuracy) / high
        return gained - (row.predicted_ms - first.predicted_ms) / wide_ms

    found = max(rows, key=above)
    if above(found) <= 0:
        raise UserError(where, "no SubNet is above the line between the ends of the front", next_step=next_step)
    return found


def cheapest(rule: WinnerRule, rows: Iterable[Winner], base_accuracy: float, device: str) -> Winner:
    """The fastest SubNet with at least the rule's share of the base accuracy. UserError when none has it."""
    rows = list(rows)
    good = [row for row in rows if row.accuracy >= rule.value * base_accuracy]
    if good:
        return min(good, key=lambda row: row.predicted_ms)
    best = max(row.accuracy for row in rows)
    highest = best / base_accuracy if base_accuracy > 0 else 0.0
    raise UserError(
        "--accuracy-share",
        f"{rule.value:g} of the base accuracy {100 * base_accuracy:.1f} % is more than any SubNet found on '{device}' has",
        allowed=f"up to {int(1000 * highest) / 1000:g} ({100 * best:.1f} %)",
        next_step="train longer or lower the share",
    )


def between(rule: WinnerRule, rows: Iterable[Winner], base_accuracy: float) -> tuple[float, ...]:
    """Budgets [ms] between the largest budget with a too inaccurate winner and the latency of the fastest accurate winner.

    The latter is the last budget. Empty if both are within the ratio `ENOUGH`, or if either does not exist.
    """
    rows = list(rows)
    target = rule.value * base_accuracy
    good_ms = [row.predicted_ms for row in rows if row.accuracy >= target]
    if not good_ms:
        return ()
    highest_ms = min(good_ms)
    bad_ms = [row.budget_ms for row in rows if row.accuracy < target and row.budget_ms < highest_ms]
    if not bad_ms or highest_ms <= ENOUGH * max(bad_ms):
        return ()
    lowest_ms, steps = max(bad_ms), BUDGETS - 1
    ratio = highest_ms / lowest_ms
    return (*(lowest_ms * ratio ** (step / BUDGETS) for step in range(1, steps + 1)), highest_ms)

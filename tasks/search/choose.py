"""Choosing: one SubNet of a finished search by a rule, or two SubNets side by side by their names on the command line.

Latencies [ms] on the device are predictions. Accuracies (fractions, validation split) are predictions, too, unless the search
measured them.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenSubNet
from tasks.base.schemas.stored import Named
from tasks.base.schemas.winners import Front, Winner

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
    """A question to a finished run: one SubNet by a rule, two side by side, or files of chosen SubNets, to be exported."""

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


NAMES = ("largest", "fastest", "knee")
FORMS = f"NUMBERms, {', '.join(NAMES)}, a digest of 4 to 16 hex characters, or a file of search: FILE.json"
FILE_END = ".json"
SHOWN = 3
BUDGET = re.compile(r"([0-9.eE+-]+) ?ms")
DIGEST = re.compile(r"[0-9a-f]{4,16}")


@dataclass(frozen=True, slots=True)
class Pick:
    """One SubNet as named by the user. `budget_ms` is 0 for all kinds but budgets; `subnet`: the content of a file."""

    kind: Literal["budget", "digest", "name", "file"]
    word: str
    budget_ms: float = 0.0
    subnet: Named | None = None


def pick(word: str) -> Pick:
    """Parse `2ms`, `largest`, `fastest`, `knee`, the first characters of a digest, or a file. UserError for anything else."""
    if word.endswith(FILE_END):
        return Pick("file", word, subnet=ChosenSubNet.read(Path(word)).subnet)
    if word in NAMES:
        return Pick("name", word)
    if match := BUDGET.fullmatch(word):
        try:
            budget_ms = float(match[1])
        except ValueError:
            budget_ms = math.nan
        if not (budget_ms > 0 and math.isfinite(budget_ms)):
            raise UserError(f"SubNet '{word}'", f"got a budget of {match[1]}", allowed="a number above 0")
        return Pick("budget", word, budget_ms)
    if DIGEST.fullmatch(word):
        return Pick("digest", word)
    raise UserError(f"SubNet '{word}'", "is no name of a SubNet", allowed=FORMS)


def resolve(chosen: Pick, found: Front, rows: Sequence[Named], device: str) -> Named:
    """The SubNet that a pick means. found: the result of a search; if the pick is a budget, for this budget.

    rows: the SubNets that a digest can refer to. UserError: the digest matches none of them, or several.
    """
    if chosen.subnet:
        return chosen.subnet
    if chosen.kind == "budget":
        return next(row for row in found.winners if row.budget_ms == chosen.budget_ms)
    if chosen.kind == "name":
        ends = {"largest": found.largest, "fastest": found.fastest}
        return ends[chosen.word] if chosen.word in ends else knee(front(found), device)
    known = {row.digest: row for row in reversed(rows)}
    matches = sorted(digest for digest in known if digest.startswith(chosen.word))
    if len(matches) == 1:
        return known[matches[0]]
    where = f"SubNet '{chosen.word}'"
    if matches:
        raise UserError(where, f"stands for {len(matches)} SubNets", allowed=", ".join(matches[:SHOWN]))
    near = difflib.get_close_matches(chosen.word, known, n=SHOWN, cutoff=0.0)
    raise UserError(
        where,
        f"is none of the {len(known)} SubNets that are known on '{device}'",
        allowed=FORMS,
        next_step=f"near: {', '.join(near)}",
    )

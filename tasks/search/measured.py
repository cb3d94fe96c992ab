"""Genetic search for the best measured accuracy: SubNets of a population are evaluated, their costs are predicted.

Populations begin with the winners by predicted accuracy. A SubNet evaluated for one budget is a candidate for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tailor_ir import SuperNet
from tasks.base.progress import Bar, Progress, Silent
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, known_accuracies
from tasks.search.genetic import BestCode
from tasks.search.methods import Genetic
from tasks.search.problem import Codes, Problem, Values, row_keys
from tasks.search.settings import Settings

EVALUATED_FILE = "evaluated.jsonl"
LOSS_COUNTS = 0.25
"""Upper bound of the loss term in the score, as a share of one image's accuracy: at equal accuracies the smaller loss wins."""


@dataclass(slots=True)
class AccuracyEvaluator:
    """Evaluates SubNets in place of a predictor. Each result is a line of `file`; a second object with the file continues."""

    net: SuperNet
    images: EvaluationData
    file: Path
    bar: Bar
    _found: dict[bytes, Accuracy] = field(default_factory=dict)
    _codes: list[Codes] = field(default_factory=list)
    _lines: dict[str, Accuracy] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = known_accuracies(self.file)

    @property
    def codes(self) -> Codes:
        """All requested codes (n, V)."""
        return np.concatenate(self._codes)

    def predict(self, codes: Codes) -> Values:
        """Accuracies (n,) on the images."""
        return np.array([found.share for found in self._accuracies(codes)])

    def score(self, codes: Codes) -> Values:
        """Accuracies (n,); their losses order equal ones."""
        found = self._accuracies(codes)
        moved = [LOSS_COUNTS / one.total * one.loss / (1 + one.loss) for one in found]
        return np.array([one.share for one in found]) - np.array(moved)

    def _accuracies(self, codes: Codes) -> list[Accuracy]:
        keys = row_keys(codes)
        fresh = {key: row for row, key in enumerate(keys) if key not in self._found}
        if fresh:
            rows = codes[list(fresh.values())]
            configs = [self.net.space.decode(row) for row in rows]
            self.bar.note(f"{len(self._found) + len(rows)} SubNets evaluated")
            found = accuracies(self.net, configs, self.images, self.file, _Within(self.bar), known=self._lines)
            self._found.update(zip(fresh, found, strict=True))
            self._codes.append(rows)
        return [self._found[key] for key in keys]


class _Within(Silent):
    """Progress inside an outer bar. The outer bar does not move, but ends the work when the run is interrupted."""

    def __init__(self, outer: Bar) -> None:
        self._outer = outer

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        yield self

    def advance(self, count: int = 1) -> None:
        """Let the outer bar end the work."""
        self._outer.advance(0)

    def note(self, text: str) -> None:
        """Do nothing: the outer bar has its own note."""


class MeasuredWinners(NamedTuple):
    """The winners, one for each budget, their accuracies (n,), and the number of evaluated SubNets."""

    winners: list[BestCode]
    accuracy: Values
    evaluated: int


def measured_winners(
    net: SuperNet,
    predicted: Problem,
    budgets: Sequence[Values],
    winners: Sequence[BestCode],
    fastest: Codes,
    settings: Settings,
    images: EvaluationData,
    out: Path,
    progress: Progress,
) -> MeasuredWinners:
    """For each row of budgets (n, K) the most accurate of all evaluated SubNets.

    winners: by predicted accuracy. fastest: code (V,) of a SubNet within the limits. A second call with the same `out`
    continues.
    """
    net.elastic.to(images.device)
    starts = np.stack([winner.code for winner in winners])
    own = settings.model_copy(update={"rebalance": 0, "beam_width": 0})
    found: list[BestCode] = []
    with progress.bar("search by measured accuracy", len(budgets)) as bar:
        accuracy = AccuracyEvaluator(net, images, out / EVALUATED_FILE, bar)
        problem = Problem(
            predicted.space, predicted.latency, accuracy, predicted.others, predicted.timed, measured=True
        )
        genetic = Genetic(problem, own, np.random.default_rng(settings.seed), starts=starts)
        genetic.knows(fastest)
        for row, winner in zip(budgets, winners, strict=True):
            genetic.knows(winner.code)
            found.append(genetic.winner(row))
            bar.advance()
    scores = problem.evaluate(accuracy.codes)
    order = np.lexsort((problem.pace(scores), -scores.score))
    codes, ranked = accuracy.codes[order], scores.take(order)
    best = np.stack([codes[np.flatnonzero(ranked.within(row))[0]] for row in budgets])
    chosen = [replace(one, code=code) for one, code in zip(found, best, strict=True)]
    return MeasuredWinners(chosen, accuracy.predict(best), len(codes))

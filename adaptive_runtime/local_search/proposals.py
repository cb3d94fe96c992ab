"""Choice of the SubNets to evaluate next: a pure function of earlier results, so that a resumed search is the same search.

Legend: E segments.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from pydantic import Field

from adaptive_runtime.local_search.evaluation import PathScore
from adaptive_runtime.local_search.prefixes import most_for_time
from adaptive_runtime.local_search.space import (
    Floats,
    LatencyRange,
    Path,
    SegmentSpace,
    best_front,
    latency_ms,
    mutated,
)
from adaptive_runtime.local_search.surrogate import AdditiveModel
from profiling_agents.messages import Message

DRAWS, OF_A_FRONT = 64, 4
"""Loss vectors drawn from the model for a generation, and number of SubNets taken from the front of each."""
GOOD, MUTANTS = 4, 16
"""Number of SubNets whose neighbours are candidates, and of repaired mutants of each."""


class LocalSearchSettings(Message):
    """budget_ms: latency limit of a SubNet on this device [ms].

    range_share: ΔT/T; SubNets are drawn from budget · (1 − range_share) on. population: of a generation; generations: at most;
    patience: generations without a better SubNet before the search ends.
    """

    budget_ms: float = Field(gt=0)
    range_share: float = Field(0.15, gt=0, le=1)
    population: int = Field(16, ge=2)
    generations: int = Field(9, ge=1)
    patience: int = Field(4, ge=1)
    seed: int = 0


class Proposer:
    """Proposes SubNets within a budget. ms_E: latencies [ms]. model: fitted again for each generation."""

    def __init__(self, space: SegmentSpace, ms_E: Floats, model: AdditiveModel, settings: LocalSearchSettings) -> None:
        self.space, self.ms, self.model, self.settings = space, ms_E, model, settings
        budget_ms = settings.budget_ms
        self.range = LatencyRange(space, ms_E, budget_ms * (1 - settings.range_share), budget_ms)

    def generation(self, number: int, known: Mapping[Path, PathScore]) -> list[Path]:
        """New SubNets to evaluate; fewer, or none, if no new ones exist. known: scores of evaluated SubNets.

        The candidates with the highest expected improvement of accuracy for the time that they add.
        """
        if known:
            self.model.fit(known)
        rng = np.random.default_rng([self.settings.seed, number])
        found = [path for path in dict.fromkeys(self._candidates(known, rng)) if path not in known]
        best = max((one.accuracy for one in known.values()), default=0.0)
        worth = self.model.improvement(found, best or max(map(self.model.predicted, found), default=0.0))
        return most_for_time(found, worth, self.ms, self.settings.population)

    def best(self, known: Mapping[Path, PathScore]) -> Path | None:
        """The best SubNet within the budget by measurement and model together; None: none was evaluated."""
        return next(iter(self._good(known)), None)

    def _good(self, known: Mapping[Path, PathScore]) -> list[Path]:
        """SubNets within the budget, the best one first."""
        fitting = [path for path in sorted(known) if latency_ms(path, self.ms) <= self.settings.budget_ms]
        return sorted(fitting, key=lambda path: -self.model.combined(path, known[path].accuracy))

    def _candidates(self, known: Mapping[Path, PathScore], rng: np.random.Generator) -> Iterator[Path]:
        """Candidates: exact optima by mean and by drawn losses, neighbours of good SubNets, and others near the budget."""
        for losses_E in (self.model.mean_E, *(self.model.draw(rng) for _ in range(DRAWS))):
            yield from reversed(best_front(self.space, -losses_E, self.ms, self.settings.budget_ms)[-OF_A_FRONT:])
        for path in self._good(known)[:GOOD]:
            yield from self._neighbours(path, rng)
        drawn = (self.range.sample(rng) for _ in range(self.settings.population))
        yield from (path for path in drawn if path is not None)

    def _neighbours(self, path: Path, rng: np.random.Generator) -> Iterator[Path]:
        """SubNets that differ by one branch, and mutants that were repaired to fit the budget."""
        yield from (other for other in self.space.replacements(path) if self.range.has(other))
        mutants = (mutated(self.space, path, self.range, rng) for _ in range(MUTANTS))
        yield from (other for other in mutants if other is not None)

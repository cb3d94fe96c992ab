"""Which SubNets are evaluated next: a pure function of what was evaluated, so that a search that goes on is the same search.

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
"""Losses that are drawn from the model for a generation, and SubNets that the front of each gives."""
GOOD, MUTANTS = 4, 16
"""SubNets whose neighbours are candidates, and neighbours of each that were repaired."""


class LocalSearchSettings(Message):
    """budget_ms: latency that a SubNet may have here. range_share: ΔT/T; SubNets from budget · (1 − range_share) on are drawn.

    population: of a generation; generations: at most; patience: without a better SubNet before the search ends.
    """

    budget_ms: float = Field(gt=0)
    range_share: float = Field(0.15, gt=0, le=1)
    population: int = Field(16, ge=2)
    generations: int = Field(9, ge=1)
    patience: int = Field(4, ge=1)
    seed: int = 0


class Proposer:
    """Proposes SubNets within a budget. ms_E: latencies [ms]. model: fitted anew to each generation."""

    def __init__(self, space: SegmentSpace, ms_E: Floats, model: AdditiveModel, settings: LocalSearchSettings) -> None:
        self.space, self.ms, self.model, self.settings = space, ms_E, model, settings
        budget_ms = settings.budget_ms
        self.range = LatencyRange(space, ms_E, budget_ms * (1 - settings.range_share), budget_ms)

    def generation(self, number: int, known: Mapping[Path, PathScore]) -> list[Path]:
        """SubNets that were not evaluated. known: scores of those that were. Fewer, or none, where nothing is new.

        Those of many candidates that are expected to improve accuracy most for the time that they add.
        """
        if known:
            self.model.fit(known)
        rng = np.random.default_rng([self.settings.seed, number])
        found = [path for path in dict.fromkeys(self._candidates(known, rng)) if path not in known]
        best = max((one.accuracy for one in known.values()), default=0.0)
        worth = self.model.improvement(found, best or max(map(self.model.predicted, found), default=0.0))
        return most_for_time(found, worth, self.ms, self.settings.population)

    def best(self, known: Mapping[Path, PathScore]) -> Path | None:
        """The SubNet within the budget with the best accuracy by measurement and model together; None: none was evaluated."""
        return next(iter(self._good(known)), None)

    def _good(self, known: Mapping[Path, PathScore]) -> list[Path]:
        """SubNets within the budget, the best one first."""
        fitting = [path for path in sorted(known) if latency_ms(path, self.ms) <= self.settings.budget_ms]
        return sorted(fitting, key=lambda path: -self.model.combined(path, known[path].accuracy))

    def _candidates(self, known: Mapping[Path, PathScore], rng: np.random.Generator) -> Iterator[Path]:
        """The exact best by mean losses and by losses as they may be, neighbours of good ones, and others near the budget."""
        for losses_E in (self.model.mean_E, *(self.model.draw(rng) for _ in range(DRAWS))):
            yield from reversed(best_front(self.space, -losses_E, self.ms, self.settings.budget_ms)[-OF_A_FRONT:])
        for path in self._good(known)[:GOOD]:
            yield from self._neighbours(path, rng)
        drawn = (self.range.sample(rng) for _ in range(self.settings.population))
        yield from (path for path in drawn if path is not None)

    def _neighbours(self, path: Path, rng: np.random.Generator) -> Iterator[Path]:
        """Those that differ by one branch, and those that were repaired to be within the budget."""
        yield from (other for other in self.space.replacements(path) if self.range.has(other))
        mutants = (mutated(self.space, path, self.range, rng) for _ in range(MUTANTS))
        yield from (other for other in mutants if other is not None)

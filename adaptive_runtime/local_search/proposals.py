"""Which SubNets are evaluated next: a pure function of what was evaluated, so that a search that goes on is the same search.

Legend: E segments.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from pydantic import Field

from adaptive_runtime.local_search.prefixes import cheapest_together
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

TRIES = 20
"""Draws for each SubNet of a generation, of which those that were evaluated before do not count."""
PROPOSED = 4
"""Proposals for each SubNet of a generation."""
SURE_SHARE = 1 / 3
"""Of a generation; these are evaluated whatever they cost."""
BEST = 4
"""SubNets whose neighbours are tried."""


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

    def generation(self, number: int, known: Mapping[Path, float]) -> list[Path]:
        """SubNets that were not evaluated. known: accuracies of those that were. Fewer, or none, where nothing is new.

        Of more proposals the first ones, and those that share most of their segments with them.
        """
        if known:
            self.model.fit(known)
        rng, population = np.random.default_rng([self.settings.seed, number]), self.settings.population
        found: dict[Path, None] = {}
        source = self._first(rng) if number == 0 else self._later(known, rng)
        for path, _ in zip(source, range(TRIES * population), strict=False):
            if path is not None and path not in known:
                found[path] = None
            if len(found) == PROPOSED * population:
                break
        return cheapest_together(list(found), self.ms, population, sure=math.ceil(SURE_SHARE * population))

    def best(self, known: Mapping[Path, float]) -> Path | None:
        """The SubNet within the budget with the best accuracy by measurement and model together; None: none was evaluated."""
        fitting = [path for path in sorted(known) if latency_ms(path, self.ms) <= self.settings.budget_ms]
        return max(fitting, key=lambda path: self.model.combined(path, known[path]), default=None)

    def _first(self, rng: np.random.Generator) -> Iterator[Path | None]:
        """The exact front by the shipped losses, the best one first; then others near the budget."""
        front = best_front(self.space, -self.model.mean_E, self.ms, self.settings.budget_ms)
        yield from reversed(front[-self.settings.population // 2 :])
        while True:
            yield self.range.sample(rng)

    def _later(self, known: Mapping[Path, float], rng: np.random.Generator) -> Iterator[Path | None]:
        """In turn: the exact best by losses as they may be, a neighbour of a good one, and any other near the budget."""
        fitting = [path for path in sorted(known) if latency_ms(path, self.ms) <= self.settings.budget_ms]
        good = sorted(fitting, key=lambda path: -self.model.combined(path, known[path]))[:BEST]
        yield from reversed(best_front(self.space, -self.model.mean_E, self.ms, self.settings.budget_ms)[-1:])
        turn = 0
        while True:
            turn += 1
            yield next(reversed(best_front(self.space, -self.model.draw(rng), self.ms, self.settings.budget_ms)), None)
            if good:
                yield mutated(self.space, good[int(rng.integers(len(good)))], self.range, rng)
            if turn % 2 == 0 or not good:
                yield self.range.sample(rng)

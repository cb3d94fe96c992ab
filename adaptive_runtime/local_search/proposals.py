"""Proposals of a search on a device: the SubNets to evaluate next, by a linear model of accuracy.

The choice is a pure function of earlier results, so that a resumed search is the same search. The model estimates the
accuracy of a SubNet as a sum of losses of its segments, with a prior, and is fitted to scores of SubNets. It learns
from the mean cross-entropy, not from the count of right answers: every image changes the cross-entropy a little, but
only a few images change the count. It therefore separates good SubNets that answer nearly the same images right.

Legend: E segments, n SubNets, F segments that are alternatives.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import Field

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.local_search.evaluation import PathScore
from adaptive_runtime.local_search.space import (
    LatencyRange,
    SegmentPath,
    SegmentSpace,
    best_front,
    latency_ms,
    most_for_time,
    mutated,
)
from profiling_agents.messages import Message

UNKNOWN_LOSS, UNKNOWN_DEVIATION = 0.02, 0.05
LEAST_DEVIATION, DEVIATION_SHARE = 0.02, 0.5
"""Standard deviations of losses on the user's images around the shipped losses."""
SCALES = (0.25, 0.5, 1.0)
"""Factors on these deviations; the most likely one is used."""
FIRST_SCALE = 0.5
"""Factor until SubNets have been evaluated."""
BEYOND_SUM = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Standard deviations of joint effects of choices beyond the sum of their losses; the most likely one is used."""
FIRST_DEVIATION = 0.01
"""Initial value of the same, and of the deviation of accuracies from the model's prediction."""
FEWEST = 4
FIRST_RATE, LEAST_RATE = 0.3, 0.05
"""Loss of accuracy per unit of cross-entropy, until SubNets have been evaluated."""


class AdditiveModel:
    """Normally distributed losses of segments: first as shipped with the bundle, then updated with evaluated SubNets.

    losses_E: shares of images that the largest SubNet loses with one segment; nan: unknown. own_E: the network's own layers,
    which lose nothing. largest: the score of the largest SubNet. images: their number.
    """

    def __init__(self, losses_E: Values, own_E: np.ndarray, largest: PathScore, images: int) -> None:
        self._largest, self._images = largest, images
        known = losses_E[~own_E & ~np.isnan(losses_E)]
        fallback = float(known.mean()) if len(known) else UNKNOWN_LOSS
        self._prior_E = np.where(own_E, 0.0, np.where(np.isnan(losses_E), fallback, losses_E))
        shipped_E = np.maximum(LEAST_DEVIATION, DEVIATION_SHARE * np.abs(self._prior_E))
        self._free = np.flatnonzero(~own_E)
        self._deviation_F = np.where(np.isnan(losses_E), UNKNOWN_DEVIATION, shipped_E)[self._free]
        self.mean_E, self._spread_FF = self._prior_E, np.diag(FIRST_SCALE * self._deviation_F)
        self._offset, self.residual_variance = 0.0, FIRST_DEVIATION**2

    def fit(self, known: Mapping[SegmentPath, PathScore]) -> None:
        """Update with evaluated SubNets; the prior is always the bundle's, so that the order does not matter."""
        paths = sorted(known)
        features_nF = self._features(paths)
        left = self._lost(list(map(known.__getitem__, paths))) - features_nF @ self._prior_E[self._free]
        pairs = itertools.product(SCALES, BEYOND_SUM)
        scale, deviation = max(pairs, key=lambda pair: self._evidence(features_nF, left, *pair))
        scaled = features_nF / deviation**2
        precision = np.diag((scale * self._deviation_F) ** -2.0) + scaled.T @ features_nF
        self.mean_E = self._prior_E.copy()
        self.mean_E[self._free] += np.linalg.solve(precision, scaled.T @ left)
        self._spread_FF = np.linalg.inv(np.linalg.cholesky(precision)).T
        self._offset = 0.0
        if len(paths) >= FEWEST:
            beyond = np.array([known[path].accuracy - self.predicted(path) for path in paths])
            self._offset = float(beyond.mean())
            self.residual_variance = max(float(beyond.var()), BEYOND_SUM[0] ** 2)

    def _lost(self, scores: Sequence[PathScore]) -> Values:
        """Loss of accuracy of SubNets against the largest one, estimated from their cross-entropy (n,)."""
        excess = np.array([one.loss for one in scores]) - self._largest.loss
        lost = self._largest.accuracy - np.array([one.accuracy for one in scores])
        described = len(scores) >= FEWEST and bool(excess.any())
        rate = max(LEAST_RATE, float(excess @ lost / (excess @ excess))) if described else FIRST_RATE
        found: Values = rate * excess
        return found

    def draw(self, rng: np.random.Generator) -> Values:
        """Random losses of segments (E,), drawn from the current distribution."""
        found = self.mean_E.copy()
        found[self._free] += self._spread_FF @ rng.standard_normal(len(self._free))
        return found

    def predicted(self, path: SegmentPath) -> float:
        """The accuracy of a SubNet by the sum of mean losses."""
        return self._largest.accuracy + self._offset - float(self.mean_E[list(path)].sum())

    def improvement(self, paths: Sequence[SegmentPath], best: float) -> Values:
        """Expected improvement of each SubNet over `best`; lower accuracies count as zero improvement, (n,)."""
        known_nF = self._features(paths) @ self._spread_FF
        deviation_n = np.sqrt((known_nF**2).sum(1) + self.residual_variance)
        above_n = (np.array([self.predicted(path) for path in paths]) - best) / deviation_n
        density_n = np.exp(-(above_n**2) / 2) / math.sqrt(2 * math.pi)
        below_n = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in above_n])
        found: Values = deviation_n * (above_n * below_n + density_n)
        return found

    def combined(self, path: SegmentPath, measured: float) -> float:
        """The accuracy of a SubNet from measurement and model, weighted by their variances.

        The best of many measurements on few images is too high by chance; the model corrects for that.
        """
        within = min(max(measured, 1 / (self._images + 2)), 1 - 1 / (self._images + 2))
        of_count = within * (1 - within) / self._images
        share = self.residual_variance / (self.residual_variance + of_count)
        return share * measured + (1 - share) * self.predicted(path)

    def _evidence(self, features_nF: Values, left: Values, scale: float, deviation: float) -> float:
        """The log-likelihood of the measurements, up to a constant."""
        known_nF = features_nF * (scale * self._deviation_F)
        root = np.linalg.cholesky(known_nF @ known_nF.T + deviation**2 * np.eye(len(left)))
        return -float((np.linalg.solve(root, left) ** 2).sum()) / 2 - float(np.log(np.diag(root)).sum())

    def _features(self, paths: Sequence[SegmentPath]) -> Values:
        found = np.zeros((len(paths), len(self._prior_E)))
        for row, path in enumerate(paths):
            found[row, list(path)] = 1.0
        return found[:, self._free]


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

    def __init__(self, space: SegmentSpace, ms_E: Values, model: AdditiveModel, settings: LocalSearchSettings) -> None:
        self.space, self.ms, self.model, self.settings = space, ms_E, model, settings
        budget_ms = settings.budget_ms
        self.range = LatencyRange(space, ms_E, budget_ms * (1 - settings.range_share), budget_ms)

    def generation(self, number: int, known: Mapping[SegmentPath, PathScore]) -> list[SegmentPath]:
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

    def best(self, known: Mapping[SegmentPath, PathScore]) -> SegmentPath | None:
        """The best SubNet within the budget by measurement and model together; None: none was evaluated."""
        return next(iter(self._good(known)), None)

    def _good(self, known: Mapping[SegmentPath, PathScore]) -> list[SegmentPath]:
        """SubNets within the budget, the best one first."""
        fitting = [path for path in sorted(known) if latency_ms(path, self.ms) <= self.settings.budget_ms]
        return sorted(fitting, key=lambda path: -self.model.combined(path, known[path].accuracy))

    def _candidates(self, known: Mapping[SegmentPath, PathScore], rng: np.random.Generator) -> Iterator[SegmentPath]:
        """Candidates: exact optima by mean and by drawn losses, neighbours of good SubNets, and others near the budget."""
        for losses_E in (self.model.mean_E, *(self.model.draw(rng) for _ in range(DRAWS))):
            yield from reversed(best_front(self.space, -losses_E, self.ms, self.settings.budget_ms)[-OF_A_FRONT:])
        for path in self._good(known)[:GOOD]:
            yield from self._neighbours(path, rng)
        drawn = (self.range.sample(rng) for _ in range(self.settings.population))
        yield from (path for path in drawn if path is not None)

    def _neighbours(self, path: SegmentPath, rng: np.random.Generator) -> Iterator[SegmentPath]:
        """SubNets that differ by one branch, and mutants that were repaired to fit the budget."""
        yield from (other for other in self.space.replacements(path) if self.range.has(other))
        mutants = (mutated(self.space, path, self.range, rng) for _ in range(MUTANTS))
        yield from (other for other in mutants if other is not None)

"""Scores of variants: weighted sums of accuracy, energy, latency and memory, by the user's weights or the battery.

Each criterion is between 0 and 1 over the variants that can be an answer. Weights come from preferences of pairs, by an
analytic hierarchy process, or the charge of the battery sets the weight of accuracy against energy. For given weights a
score is an order of preference, so a look-up in that order finds the highest score within the limits as fast as the
most accurate variant.

Legend: V variants, N criteria, M matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.inputs import VariantTable
from adaptive_runtime.policy.lookup import LeastCost, MostAccurate, Objective, VariantLookUp

STEPS = 100
"""Steps of mu from 0 to 1; each is one order of preference."""
POINTS = ((0.0, 0.2), (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class BatteryMu:
    """mu in steps of 0.01, linear between points (charge, mu) and constant outside of them; both rise.

    Source: CrowdHMTware §III-D, where mu follows the remaining battery.
    """

    points: tuple[tuple[float, float], ...] = POINTS

    def __post_init__(self) -> None:
        charges = [charge for charge, _ in self.points]
        rises = all(a < b for a, b in pairwise(charges)) and all(a[1] <= b[1] for a, b in pairwise(self.points))
        if not (self.points and rises and all(0 <= value <= 1 for point in self.points for value in point)):
            got = ", ".join(f"{charge:.4g}: {mu:.4g}" for charge, mu in self.points) or "no points"
            allowed = "charges from 0 to 1 that rise, each with a mu from 0 to 1 that does not fall"
            raise AdaptiveError("mu by battery", got, allowed=allowed)

    def mu(self, battery: float | None, charging: bool | None, before: float | None = None) -> float:
        """mu for a charge; on mains, or without a battery, that of the last point.

        before: the present mu, which stays while the charge asks for a change of less than one and a half steps, to avoid
        flapping.
        """
        if charging or battery is None:
            return self.points[-1][1]
        mu = self._between(battery)
        if before is not None and abs(mu - before) < 1.5 / STEPS:
            return before
        return round(mu * STEPS) / STEPS

    def _between(self, battery: float) -> float:
        """mu for a charge, interpolated between the neighbouring points."""
        (charge, mu), *others = self.points
        if battery <= charge:
            return mu
        for next_charge, next_mu in others:
            if battery < next_charge:
                return mu + (next_mu - mu) / (next_charge - charge) * (battery - charge)
            charge, mu = next_charge, next_mu
        return mu


Criterion = Literal["accuracy", "energy", "latency", "memory"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
WHERE = "objective"


class CriterionWeights(NamedTuple):
    """Weights from 0 on: that of the accuracy raises a score, those of the costs lower it."""

    accuracy: float = 0.0
    energy: float = 0.0
    latency: float = 0.0
    memory: float = 0.0

    @classmethod
    def of_mu(cls, mu: float) -> Self:
        """mu for the accuracy, 1 - mu for the energy. Source: CrowdHMTware, eq. 3. AdaptiveError if mu is not in 0 to 1."""
        if not 0 <= mu <= 1:
            raise AdaptiveError(WHERE, f"mu {mu:g}", allowed="0 (energy alone) to 1 (accuracy alone)")
        return cls(accuracy=mu, energy=1 - mu)

    def checked(self, table: VariantTable) -> Self:
        """The same weights. AdaptiveError if one is negative, all are 0, or the table lacks a weighted column."""
        if not all(0 <= weight < float("inf") for weight in self) or not any(self):
            got = "weights " + ", ".join(f"{weight:g}" for weight in self)
            raise AdaptiveError(WHERE, got, allowed="0 and more, one of them above 0")
        for criterion, column in (("energy", "energy_mj"), ("memory", "memory_mib")):
            if getattr(self, criterion) and getattr(table, column) is None:
                got = f"a weight of {criterion} for a table without {criterion}"
                raise AdaptiveError(WHERE, got, allowed="0", next_step="measure it, or leave it out")
        return self

    def scores_V(self, table: VariantTable, rows: Sequence[int]) -> Values:
        """Weight times Norm(accuracy), minus the same for the costs (V,). rows: Norm goes from 0 to 1 over these.

        Rounding never gives a variant a higher score than one that is at least as good in each criterion.
        """
        score_V = self.accuracy * norm_V(table.accuracy_V, rows)
        for weight, cost_V in (
            (self.energy, table.energy_mj_V),
            (self.latency, table.latency_ms_V),
            (self.memory, table.memory_mib_V),
        ):
            score_V = score_V - weight * norm_V(cost_V, rows)
        return score_V


ACCURACY_FIRST = CriterionWeights(accuracy=1.0)
ENERGY_FIRST = CriterionWeights.of_mu(0.0)
LATENCY_FIRST = CriterionWeights(latency=1.0)


def norm_V(column_V: Values, rows: Sequence[int]) -> Values:
    """(x - least) / (largest - least) over some rows; 0 everywhere if all these are equal."""
    least, largest = column_V[rows].min(), column_V[rows].max()
    if largest == least:
        return np.zeros_like(column_V)
    norm: Values = (column_V - least) / (largest - least)
    return norm


RANDOM_INDEX = {2: 0.0, 3: 0.58, 4: 0.90}
"""Mean consistency index of random matrices of this size. Source: Saaty, The Analytic Hierarchy Process (1980)."""
MOST_RATIO = 0.1
MOST_PREFERENCE = 9
SCALE = tuple(1 / value for value in range(MOST_PREFERENCE, 1, -1)) + tuple(map(float, range(1, MOST_PREFERENCE + 1)))
WHERE_PREFERENCES = "preferences"


@dataclass(frozen=True, slots=True)
class PairwisePreferences:
    """How many times more important one criterion is than another, from 1/9 to 9.

    upper: for the pairs in the order of `combinations(criteria, 2)`, the upper triangle of the reciprocal matrix. AdaptiveError
    for a value outside the scale, for other pairs than those of the criteria, or for preferences that contradict each other
    (consistency ratio above 0.1).
    """

    criteria: tuple[Criterion, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        criteria = ", ".join(self.criteria)
        known = set(self.criteria) <= set(CRITERIA) and len(set(self.criteria)) == len(self.criteria)
        if not known or len(self.criteria) not in RANDOM_INDEX:
            raise AdaptiveError(
                WHERE_PREFERENCES, f"of '{criteria}'", allowed=f"2 to 4 of {', '.join(CRITERIA)}, each once"
            )
        if len(self.upper) != len(self.pairs):
            got = f"{len(self.upper)} values for the {len(self.pairs)} pairs of {criteria}"
            raise AdaptiveError(WHERE_PREFERENCES, got, next_step="give one for each pair")
        for (one, other), value in zip(self.pairs, self.upper, strict=True):
            if not 1 / MOST_PREFERENCE - 1e-9 <= value <= MOST_PREFERENCE + 1e-9:
                raise AdaptiveError(f"{WHERE_PREFERENCES}, {one}:{other}", f"{value:g}", allowed="1/9 to 9")
        if self.consistency_ratio > MOST_RATIO:
            self._refuse()

    @property
    def pairs(self) -> tuple[tuple[Criterion, Criterion], ...]:
        """All pairs of criteria, in the order of `upper`."""
        return tuple(combinations(self.criteria, 2))

    @property
    def consistency_ratio(self) -> float:
        """0 if all preferences follow from one set of weights; about 1 for random ones."""
        return float(_ratios_M(self._matrix[None])[0])

    @property
    def weights(self) -> CriterionWeights:
        """The principal eigenvector, scaled to sum 1; 0 for criteria that are not compared."""
        values, vectors = np.linalg.eig(self._matrix)
        weights_N = np.abs(vectors[:, values.real.argmax()].real)
        shares_N = (weights_N / weights_N.sum()).tolist()
        return CriterionWeights(**dict(zip(self.criteria, shares_N, strict=True)))

    @property
    def _matrix(self) -> Values:
        return _reciprocal(len(self.criteria), self.upper)

    def _refuse(self) -> None:
        """Raise AdaptiveError with the pair, and its value on the scale, that would make the preferences most consistent."""
        changed = [
            (place, value, (*self.upper[:place], value, *self.upper[place + 1 :]))
            for place in range(len(self.upper))
            for value in SCALE
        ]
        count = len(self.criteria)
        ratio_M = _ratios_M(np.stack([_reciprocal(count, upper) for _, _, upper in changed]))
        best = int(ratio_M.argmin())
        place, value, _ = changed[best]
        one, other = self.pairs[place]
        got = f"{one}:{other} = {described(self.upper[place])} contradicts the other pairs (consistency ratio "
        got += f"{self.consistency_ratio:.2f})"
        fits = f"{one}:{other} = {described(value)} would fit best ({ratio_M[best]:.2f})"
        raise AdaptiveError(WHERE_PREFERENCES, got, allowed=f"a ratio up to {MOST_RATIO:g}", next_step=fits)


def described(value: float) -> str:
    """A preference as people write it: 3, or 1/3."""
    return f"1/{1 / value:.3g}" if value < 1 else f"{value:.3g}"


def _reciprocal(count: int, upper: tuple[float, ...]) -> Values:
    matrix = np.ones((count, count))
    rows, columns = np.triu_indices(count, 1)
    matrix[rows, columns] = upper
    matrix[columns, rows] = 1 / np.array(upper)
    return matrix


def _ratios_M(matrices_MNN: Values) -> NDArray[np.float64]:
    """Consistency ratios (M,): (largest eigenvalue - N) / (N - 1), over that of random matrices."""
    count = matrices_MNN.shape[-1]
    if not RANDOM_INDEX[count]:
        return np.zeros(len(matrices_MNN))
    largest_M = np.linalg.eigvals(matrices_MNN).real.max(-1)
    ratio_M: NDArray[np.float64] = np.maximum(0.0, largest_M - count) / (count - 1) / RANDOM_INDEX[count]
    return ratio_M


KEPT_ORDERS = 16
"""Limit of kept orders of preference, each with its look-up."""


@dataclass(frozen=True, slots=True)
class BestScore(MostAccurate):
    """The variant with the highest score within the limits; equal ones in the order of `VariantLookUp`.

    look_up: in the order of the scores. Limits apply under load; scores do not change with it. Each criterion is scaled to 0 to
    1 over the variants that can be an answer, so replaced variants change nothing. Source: CrowdHMTware, eq. 3.
    """

    weights: CriterionWeights

    @classmethod
    def of(cls, look_up: VariantLookUp, weights: CriterionWeights) -> "BestScore":
        """The objective for weights and the look-up of the most accurate variant. AdaptiveError if the table lacks a column."""
        table = look_up.table
        return cls(look_up.ranked(weights.checked(table).scores_V(table, look_up.kept_rows)), weights)


class ScoredObjectives:
    """Objectives of one table by their weights.

    of: the objective for some weights: the most accurate, the fastest under load, or the highest score. The most recent ones
    are kept.
    """

    def __init__(self, look_up: VariantLookUp) -> None:
        self.look_up = look_up
        self.of = lru_cache(KEPT_ORDERS)(self._made)

    def _made(self, weights: CriterionWeights) -> Objective:
        if weights == ACCURACY_FIRST:
            return MostAccurate(self.look_up)
        if weights == LATENCY_FIRST:
            return LeastCost(self.look_up, alpha_per_ms=1.0, beta_per_mj=0.0)
        return BestScore.of(self.look_up, weights)

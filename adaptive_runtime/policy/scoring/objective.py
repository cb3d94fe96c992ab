"""The variant with the highest score within the limits, found as fast as the most accurate one.

For given weights a score is an order of preference, so a look-up in that order finds the highest score.
"""

from collections.abc import Set
from dataclasses import dataclass

from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors
from adaptive_runtime.policy.lookup import NONE, FoundVariant, VariantLookUp
from adaptive_runtime.policy.objectives import LeastCost, MostAccurate, Objective
from adaptive_runtime.policy.scoring.weights import ACCURACY_FIRST, LATENCY_FIRST, CriterionWeights

KEPT_ORDERS = 16
"""Limit of kept orders of preference, each with its look-up."""


@dataclass(frozen=True, slots=True)
class BestScore:
    """The variant with the highest score within the limits; equal ones in the order of `VariantLookUp`.

    look_up: in the order of the scores. Limits apply under load; scores do not change with it. Each criterion is scaled to 0 to
    1 over the variants that can be an answer, so replaced variants change nothing. Source: CrowdHMTware, eq. 3.
    """

    look_up: VariantLookUp
    weights: CriterionWeights

    @classmethod
    def of(cls, look_up: VariantLookUp, weights: CriterionWeights) -> "BestScore":
        """The objective for weights and the look-up of the most accurate variant. AdaptiveError if the table lacks a column."""
        table = look_up.table
        return cls(look_up.ranked(weights.checked(table).scores_V(table, look_up.kept_rows)), weights)

    def find(self, limits: ChoiceLimits, factors: LoadFactors, without: Set[int] = NONE) -> FoundVariant:
        return self.look_up.under(limits, factors, without)

    def prefers(self, one: int, other: int, factors: LoadFactors) -> bool:
        return self.look_up.prefers(one, other)


class ScoredObjectives:
    """Objectives of one table by their weights. The most recent ones are kept."""

    def __init__(self, look_up: VariantLookUp) -> None:
        self.look_up = look_up
        self._kept: dict[CriterionWeights, Objective] = {}

    def of(self, weights: CriterionWeights) -> Objective:
        """The objective for some weights: the most accurate, the fastest under load, or the highest score."""
        found = self._kept.pop(weights, None)
        if found is None:
            found = self._made(weights)
            while len(self._kept) >= KEPT_ORDERS:
                del self._kept[next(iter(self._kept))]
        self._kept[weights] = found
        return found

    def _made(self, weights: CriterionWeights) -> Objective:
        if weights == ACCURACY_FIRST:
            return MostAccurate(self.look_up)
        if weights == LATENCY_FIRST:
            return LeastCost(self.look_up, alpha_per_ms=1.0, beta_per_mj=0.0)
        return BestScore.of(self.look_up, weights)

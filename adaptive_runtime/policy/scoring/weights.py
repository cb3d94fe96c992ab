"""The score of variants: a weighted sum of criteria, each between 0 and 1 over the variants that can be an answer.

Legend: V variants.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.table import VariantTable

Criterion = Literal["accuracy", "energy", "latency", "memory"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
WHERE = "objective"
Values = NDArray[np.float64]


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

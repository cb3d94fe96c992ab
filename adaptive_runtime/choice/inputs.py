"""What a choice depends on besides the table: limits, and how much slower variants are under load.

Legend: V variants, C load classes.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Annotated, Self

from pydantic import Field, model_validator

from profiling_agents.messages import Message

MOST_QUANTILE = 1 - 1e-9
LEAST_SHARE = 1e-3
"""Of the budget, for a request that has none left."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
MeanAndDeviation = tuple[Positive, NotNegative]


class ChoiceLimits(Message):
    """budget_ms: kept with probability `quantile` at least. energy_mj, memory_mib: None is no limit."""

    budget_ms: Positive
    quantile: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    energy_mj: NotNegative | None = None
    memory_mib: NotNegative | None = None

    def tighter(self, margin: float) -> "ChoiceLimits":
        """The same with a share of the latency left free."""
        return self.model_copy(update={"budget_ms": self.budget_ms * (1 - margin)})

    def for_run(self, left: int, runs: int, spent_ms: float, expected_ms: float) -> "ChoiceLimits":
        """Of the next run of a request, of whose `runs` so many are `left`. They share the time left.

        spent_ms: what the request took so far. expected_ms: what it should have taken at most, by its decisions; where it took
        more, the load has risen, and the runs left are expected to take as much more. Fewer runs scatter more than all of them
        together: so the quantile rises.
        """
        if runs == 1:
            return self
        left_ms = max(LEAST_SHARE * self.budget_ms, self.budget_ms - spent_ms)
        pace = max(1.0, spent_ms / expected_ms) if expected_ms else 1.0
        quantile = of_part(self.quantile, runs / left)
        return self.model_copy(update={"budget_ms": left_ms / left / pace, "quantile": quantile})


class LoadFactors(Message):
    """Mean and deviation of latency under load over latency without: of each load class (C,), and of variants by themselves."""

    mean: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0,)
    deviation: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.0,)
    own: Mapping[int, MeanAndDeviation] = {}

    @model_validator(mode="after")
    def _each_mean_has_a_deviation(self) -> Self:
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means and {len(self.deviation)} deviations")
        return self


@lru_cache(maxsize=1024)
def of_part(quantile: float, parts: float) -> float:
    """The quantile of one of several independent equal parts, as far above its mean as `quantile` is for their mean."""
    return min(MOST_QUANTILE, NormalDist().cdf(deviations(quantile) * sqrt(parts)))


@lru_cache(maxsize=1024)
def deviations(quantile: float) -> float:
    """How many deviations above its mean a normal variable has this quantile."""
    return NormalDist().inv_cdf(quantile)


def effective_factor(mean: float, deviation: float, error: float, above: float) -> float:
    """A quantile of slow-down × (1 + error of the prediction), `above` deviations over the mean.

    Both are independent; the product has mean `mean` and variance deviation² + error² · (mean² + deviation²).
    """
    return mean + above * sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation))

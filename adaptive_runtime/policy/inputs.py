"""Inputs of a choice besides the table: limits, and the slow-down of variants under load.

Legend: V variants, C load classes.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, copysign, floor, log10, sqrt
from statistics import NormalDist
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from profiling_agents.messages import Message

MOST_QUANTILE = 1 - 1e-9
MOST_ROOM = 3.0
"""Cap on deviations: load is not normally distributed enough for more to mean anything."""
ROOM_STEPS = 10
"""Steps within one deviation."""
LEAST_SHARE = 1e-3
"""Share of the budget for a request that has none left."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
MeanAndDeviation = tuple[Positive, NotNegative]


class RequestProgress(NamedTuple):
    """A request before one of its runs.

    runs: their total number. left: number of remaining runs. spent_ms: time spent up to now. expected_ms: most time that the
    finished runs should have taken, by their decisions. budget_ms: of the request, if less than the limits'; None: the limits'.
    """

    runs: int = 1
    left: int = 1
    spent_ms: float = 0.0
    expected_ms: float = 0.0
    budget_ms: float | None = None

    @property
    def pace(self) -> float:
        """The factor by which the request took longer than it should have at most; 1 if it did not."""
        return max(1.0, self.spent_ms / self.expected_ms) if self.expected_ms else 1.0

    @property
    def with_usual_budget(self) -> Self:
        """The same progress without a budget of its own."""
        return self._replace(budget_ms=None)

    def has_less(self, budget_ms: float) -> bool:
        """Whether its own budget is less than this one."""
        return self.budget_ms is not None and self.budget_ms < budget_ms

    def after(self, effective_ms: float, spent_ms: float) -> Self:
        """The progress after one more run, which should have taken at most `effective_ms`; spent_ms: total of the request."""
        expected_ms = self.expected_ms + effective_ms
        return self._replace(left=self.left - 1, spent_ms=spent_ms, expected_ms=expected_ms)


class ChoiceLimits(Message):
    """budget_ms: to be kept with probability `quantile` at least. energy_mj, memory_mib: None is no limit."""

    budget_ms: Positive
    quantile: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    energy_mj: NotNegative | None = None
    memory_mib: NotNegative | None = None

    def tighter(self, margin: float) -> "ChoiceLimits":
        """The same limits with a share of the latency left free."""
        return self.model_copy(update={"budget_ms": self.budget_ms * (1 - margin)})

    def for_run(self, request: RequestProgress) -> "ChoiceLimits":
        """Limits of the next run of a request, whose remaining runs share the remaining time.

        If the request took longer than it should have at most, the load has risen, and the remaining runs are expected to slow
        down
        by the same factor. Few runs scatter more than all of them together, so the quantile rises.
        """
        if request.runs == 1 and not request.has_less(self.budget_ms):
            return self
        most_ms = self.budget_ms if request.budget_ms is None else min(self.budget_ms, request.budget_ms)
        left_ms = max(LEAST_SHARE * self.budget_ms, most_ms - request.spent_ms) / request.left
        quantile = quantile_of(deviations(self.quantile) * sqrt(request.runs / request.left))
        return self.model_copy(update={"budget_ms": left_ms / request.pace, "quantile": quantile})


class LoadFactors(Message):
    """Mean and deviation of latency under load over latency without: per load class (C,), and for single variants in `own`."""

    mean: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0,)
    deviation: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (0.0,)
    own: Mapping[int, MeanAndDeviation] = {}

    @model_validator(mode="after")
    def _each_mean_has_a_deviation(self) -> Self:
        if len(self.mean) != len(self.deviation):
            raise ValueError(f"{len(self.mean)} means and {len(self.deviation)} deviations")
        return self


def quantile_of(above: float) -> float:
    """The inverse of `deviations`, below 1."""
    return min(MOST_QUANTILE, NormalDist().cdf(above))


@lru_cache(maxsize=1024)
def deviations(quantile: float) -> float:
    """The number of deviations by which a normal variable's quantile lies above its mean."""
    return NormalDist().inv_cdf(quantile)


def quantile_told(quantile: float) -> str:
    """A quantile as text: in three digits, or in as many as are needed to distinguish it from 1."""
    return f"{quantile:.{max(3, ceil(-log10(1 - quantile)))}g}"


def effective_factor(mean: float, deviation: float, error: float, above: float) -> float:
    """A quantile of slow-down × (1 + error of the prediction), `above` deviations over the mean.

    Both are independent; the product has mean `mean` and variance deviation² + error² · (mean² + deviation²).
    """
    return mean + above * sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation))


def room_of(limit: float, mean: float, deviation: float, error: float) -> int:
    """Tenths of a deviation that a limit leaves above the mean of that product, up to `MOST_ROOM` deviations; 0: none."""
    spread, left = sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation)), limit - mean
    room = left / spread if spread else copysign(MOST_ROOM, left)
    return floor(min(MOST_ROOM, max(0.0, room)) * ROOM_STEPS)

"""What a choice depends on besides the table: limits, and how much slower variants are under load.

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
"""More deviations say nothing: no load is so normal."""
ROOM_STEPS = 10
"""In one deviation."""
LEAST_SHARE = 1e-3
"""Of the budget, for a request that has none left."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
MeanAndDeviation = tuple[Positive, NotNegative]


class RequestProgress(NamedTuple):
    """A request before one of its runs.

    runs: how many it has. left: how many of them are left. spent_ms: what it took so far. expected_ms: what its runs so far
    should have taken at most, by their decisions. budget_ms: of the request, where it is less than the limits'; None: theirs.
    """

    runs: int = 1
    left: int = 1
    spent_ms: float = 0.0
    expected_ms: float = 0.0
    budget_ms: float | None = None

    @property
    def pace(self) -> float:
        """By which factor it took longer than it should have at most; 1 where it did not."""
        return max(1.0, self.spent_ms / self.expected_ms) if self.expected_ms else 1.0

    @property
    def with_usual_budget(self) -> Self:
        """The same, as if it had no budget of its own."""
        return self._replace(budget_ms=None)

    def has_less(self, budget_ms: float) -> bool:
        """Whether its own budget is less than this one."""
        return self.budget_ms is not None and self.budget_ms < budget_ms

    def after(self, effective_ms: float, spent_ms: float) -> Self:
        """After one more run, which should have taken `effective_ms` at most; spent_ms: of the request so far."""
        expected_ms = self.expected_ms + effective_ms
        return self._replace(left=self.left - 1, spent_ms=spent_ms, expected_ms=expected_ms)


class ChoiceLimits(Message):
    """budget_ms: kept with probability `quantile` at least. energy_mj, memory_mib: None is no limit."""

    budget_ms: Positive
    quantile: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    energy_mj: NotNegative | None = None
    memory_mib: NotNegative | None = None

    def tighter(self, margin: float) -> "ChoiceLimits":
        """The same with a share of the latency left free."""
        return self.model_copy(update={"budget_ms": self.budget_ms * (1 - margin)})

    def for_run(self, request: RequestProgress) -> "ChoiceLimits":
        """Of the next run of a request, whose runs that are left share the time left.

        Where the request took longer than it should have at most, the load has risen, and the runs left are expected to take as
        much longer. Fewer runs scatter more than all of them together: so the quantile rises.
        """
        if request.runs == 1 and not request.has_less(self.budget_ms):
            return self
        most_ms = self.budget_ms if request.budget_ms is None else min(self.budget_ms, request.budget_ms)
        left_ms = max(LEAST_SHARE * self.budget_ms, most_ms - request.spent_ms) / request.left
        quantile = quantile_of(deviations(self.quantile) * sqrt(request.runs / request.left))
        return self.model_copy(update={"budget_ms": left_ms / request.pace, "quantile": quantile})


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


def quantile_of(above: float) -> float:
    """The inverse of `deviations`, below 1."""
    return min(MOST_QUANTILE, NormalDist().cdf(above))


@lru_cache(maxsize=1024)
def deviations(quantile: float) -> float:
    """How many deviations above its mean a normal variable has this quantile."""
    return NormalDist().inv_cdf(quantile)


def quantile_told(quantile: float) -> str:
    """A quantile as text: in three digits, or in as many as tell it from 1."""
    return f"{quantile:.{max(3, ceil(-log10(1 - quantile)))}g}"


def effective_factor(mean: float, deviation: float, error: float, above: float) -> float:
    """A quantile of slow-down × (1 + error of the prediction), `above` deviations over the mean.

    Both are independent; the product has mean `mean` and variance deviation² + error² · (mean² + deviation²).
    """
    return mean + above * sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation))


def room_of(limit: float, mean: float, deviation: float, error: float) -> int:
    """How many tenths of a deviation a limit leaves above the mean of that product, up to `MOST_ROOM` deviations; 0: none."""
    spread, left = sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation)), limit - mean
    room = left / spread if spread else copysign(MOST_ROOM, left)
    return floor(min(MOST_ROOM, max(0.0, room)) * ROOM_STEPS)

"""Inputs of a choice: the table of variants, limits, and the slow-down of variants under load.

A variant is a SubNet, or a SubNet up to an exit; a file has the variants of a deployed model.

Legend: V variants, C load classes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, copysign, floor, log10, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import read_bytes, replace_file
from adaptive_runtime.base.numbers import NotNegative, Positive, Share
from profiling_agents.messages import Message, one_line

Column = tuple[NotNegative, ...]
Positives = tuple[Positive, ...]
Shares = tuple[Share, ...]
OPTIONAL = ("latency_error", "energy_mj", "memory_mib", "load_class")
AGAIN = "make the table again"


class VariantTable(Message):
    """One row for each variant, stored as columns (V,). None: the column is unknown.

    accuracy: fraction. latency_ms: predicted without load; latency_error: standard deviation of the prediction, relative.
    energy_mj: of one sample. load_class: variants of one class slow down alike under load; None: all variants do.
    """

    version: Literal[1] = 1
    names: Annotated[tuple[str, ...], Field(min_length=1)]
    accuracy: Shares
    latency_ms: Positives
    latency_error: Column | None = None
    energy_mj: Column | None = None
    memory_mib: Column | None = None
    load_class: tuple[Annotated[int, Field(ge=0, lt=64)], ...] | None = None

    @model_validator(mode="after")
    def _columns_have_one_value_for_each_variant(self) -> Self:
        for name in ("accuracy", "latency_ms", *OPTIONAL):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.names):
                raise ValueError(f"{name} has {len(column)} values for {len(self.names)} variants")
        if len(set(self.names)) < len(self.names):
            raise ValueError("two variants have one name")
        return self

    def __len__(self) -> int:
        return len(self.names)

    def of_rows(self, rows: Sequence[int]) -> Self:
        """The table with only the given rows."""
        columns = {name: getattr(self, name) for name in ("names", "accuracy", "latency_ms", *OPTIONAL)}
        known = {name: tuple(column[row] for row in rows) for name, column in columns.items() if column is not None}
        return type(self)(**known)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Columns that the table lacks."""
        return tuple(name for name in OPTIONAL if getattr(self, name) is None)

    @property
    def accuracy_V(self) -> NDArray[np.float64]:
        return np.array(self.accuracy)

    @property
    def latency_ms_V(self) -> NDArray[np.float64]:
        return np.array(self.latency_ms)

    @property
    def latency_error_V(self) -> NDArray[np.float64]:
        return self._or_zeros(self.latency_error)

    @property
    def energy_mj_V(self) -> NDArray[np.float64]:
        return self._or_zeros(self.energy_mj)

    @property
    def memory_mib_V(self) -> NDArray[np.float64]:
        return self._or_zeros(self.memory_mib)

    @property
    def load_class_V(self) -> NDArray[np.int64]:
        return self._or_zeros(self.load_class).astype(np.int64)

    @property
    def load_classes(self) -> int:
        """The number of load classes, C."""
        return int(self.load_class_V.max()) + 1

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "table of variants") -> Self:
        """Parse a file's text. AdaptiveError in one line for another version, damage, or another kind of file."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(where, one_line(error), next_step=AGAIN) from error

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all. OSError."""
        replace_file(file, self.to_json())

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file. AdaptiveError in one line."""
        return cls.from_json(read_bytes(file, AGAIN), str(file))

    def _or_zeros(self, column: Sequence[float] | None) -> NDArray[np.float64]:
        return np.zeros(len(self)) if column is None else np.array(column, np.float64)


MOST_QUANTILE = 1 - 1e-9
MOST_ROOM = 3.0
"""Cap on deviations: load is not normally distributed enough for more to mean anything."""
ROOM_STEPS = 10
"""Steps within one deviation."""
LEAST_SHARE = 1e-3
"""Share of the budget for a request that has none left."""
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

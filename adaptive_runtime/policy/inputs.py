"""Inputs of a choice: the table of variants, limits, and the slow-down of variants under load.

A variant is a SubNet, or a SubNet up to an exit; a file has the variants of a deployed model.

Legend: V variants, C load classes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from adaptive_runtime.base.files import FileMessage, replace_file
from adaptive_runtime.base.numbers import NotNegative, Positive, Share
from profiling_agents.messages import Message

Column = tuple[NotNegative, ...]
Positives = tuple[Positive, ...]
Shares = tuple[Share, ...]
OPTIONAL = ("latency_error", "energy_mj", "memory_mib", "load_class")


class VariantTable(FileMessage):
    """One row for each variant, stored as columns (V,). None: the column is unknown.

    accuracy: fraction. latency_ms: predicted without load; latency_error: standard deviation of the prediction, relative.
    energy_mj: of one sample. load_class: variants of one class slow down alike under load; None: all variants do.
    """

    WHERE: ClassVar[str] = "table of variants"
    NEXT_STEP: ClassVar[str] = "make the table again"
    INDENT: ClassVar[int | None] = None

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

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all. OSError."""
        replace_file(file, self.to_json())

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file. AdaptiveError in one line."""
        return cls.from_file(file)

    def _or_zeros(self, column: Sequence[float] | None) -> NDArray[np.float64]:
        return np.zeros(len(self)) if column is None else np.array(column, np.float64)


MeanAndDeviation = tuple[Positive, NotNegative]


class ChoiceLimits(Message):
    """budget_ms: to be kept with probability `quantile` at least. energy_mj, memory_mib: None is no limit."""

    budget_ms: Positive
    quantile: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    energy_mj: NotNegative | None = None
    memory_mib: NotNegative | None = None

    def tighter(self, margin: float) -> "ChoiceLimits":
        """The same limits with a share of the latency left free."""
        return self.model_copy(update={"budget_ms": self.budget_ms * (1 - margin)})


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

"""Costs of early exits: exit rates, average and worst latency and energy, and the best exit within a latency budget.

Means are sums over segments: a segment costs its own latency times the share of samples that reach it, so the search
can add means up like operators. A file has the measurements of exits on one device.

Legend: N samples, E exits up to the full answer, R timed runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.files import FileMessage

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitPrediction:
    """rates: share of samples that leave at each exit. Latencies [ms] of one sample; expected_mj: energy, if known."""

    rates: tuple[float, ...]
    expected_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    expected_mj: float | None = None


def exits_taken(confidences_NE: Values, bars: Sequence[float]) -> NDArray[np.int64]:
    """The exit of each sample (N,): the first at which its confidence reaches the bar, else the one behind all bars."""
    leaves = confidences_NE[:, : len(bars)] >= np.asarray(bars, np.float64)
    whole = np.ones((len(leaves), 1), bool)
    return np.concatenate([leaves, whole], 1).argmax(1)


def exit_rates(exits_N: NDArray[np.int64], exits: int) -> Values:
    """Share of samples at each exit (E,)."""
    return np.bincount(exits_N, minlength=exits) / len(exits_N)


def reach(rates_E: Values) -> Values:
    """Share of samples that run each segment (E,): all that leave at its end or later."""
    return np.cumsum(rates_E[::-1])[::-1]


def predict(rates_E: Values, runs_ms: Values, segments_mj_E: Values | None = None) -> ExitPrediction:
    """Latency and energy of samples that leave at these rates.

    runs_ms: cumulative latency of leaving at each exit, once (E,) or per run (E, R) [ms]. segments_mj_E: energy of each segment
    with its head [mJ].
    """
    runs_ms_ER = runs_ms.reshape(len(rates_E), -1)
    runs = runs_ms_ER.shape[1]
    values, weights = runs_ms_ER.ravel(), np.repeat(rates_E / runs, runs)
    p50, p90, p99 = (weighted_quantile(values, weights, share) for share in (0.5, 0.9, 0.99))
    return ExitPrediction(
        rates=tuple(map(float, rates_E)),
        expected_ms=float(rates_E @ runs_ms_ER.mean(1)),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        expected_mj=None if segments_mj_E is None else float(reach(rates_E) @ segments_mj_E),
    )


def weighted_quantile(values: Values, weights: Values, share: float) -> float:
    """The smallest value whose cumulative weight is at least this share."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    place = int(np.searchsorted(below, share * below[-1] - ROUNDING))
    return float(values[order[min(place, len(order) - 1)]])


NO_EXIT = -1


class ExitChoice(NamedTuple):
    """A SubNet, run up to one of its exits. accuracy: fraction, measured; latency_ms: up to the exit, measured on device."""

    subnet: int
    exit: int
    """`NO_EXIT`: the SubNet without any exit."""
    accuracy: float
    latency_ms: float


def best_within(choices: Sequence[ExitChoice], budget_ms: float) -> ExitChoice | None:
    """The most accurate choice within a budget, among equal ones the fastest, then one without exits. None if nothing fits."""
    fitting = (choice for choice in choices if choice.latency_ms <= budget_ms)
    return min(fitting, key=lambda one: (-one.accuracy, one.latency_ms, one.exit != NO_EXIT), default=None)


class ExitTable(FileMessage):
    """SubNets by name, exits by name, and the measured choices.

    subnets, exits: the names that the numbers of an `ExitChoice` index. choices: as measured on the device.
    """

    WHERE: ClassVar[str] = "exit table"
    NEXT_STEP: ClassVar[str] = "make the table again"

    version: Literal[1] = 1
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    choices: tuple[ExitChoice, ...]

    @model_validator(mode="after")
    def _numbers_are_of_names(self) -> Self:
        for choice in self.choices:
            if not 0 <= choice.subnet < len(self.subnets):
                raise ValueError(f"subnet {choice.subnet} of {len(self.subnets)}")
            if not NO_EXIT <= choice.exit < len(self.exits):
                raise ValueError(f"exit {choice.exit} of {len(self.exits)}")
        return self

    def best_within(self, budget_ms: float) -> ExitChoice | None:
        """The best choice within a budget [ms]; None if nothing fits."""
        return best_within(self.choices, budget_ms)

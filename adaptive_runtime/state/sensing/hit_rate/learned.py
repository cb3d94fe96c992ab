"""The hit rate as learned: a regression on the device's state, taught by counters or by a probe while they work.

A device that cannot afford a probe uses the file of a similar device.
"""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.least_squares import RecursiveLeastSquares
from adaptive_runtime.state.sensing.state import HitRateSource, SensedState
from profiling_agents.messages import Message, one_line

FEATURES = ("1", "cpu_use_others", "pressure_cpu", "memory_use", "runnable_per_cpu")
FEWEST = 30
MEMORY = 600.0
RIDGE = 0.1
ERROR_KEEPS = 0.95


class LearnedHitRateFile(Message):
    """Coefficients of the features, their number of samples, and their recent mean absolute error."""

    version: Literal[1] = 1
    features: tuple[str, ...]
    coefficients: tuple[float, ...]
    samples: Annotated[int, Field(ge=0)]
    error: Annotated[float, Field(ge=0)]


class LearnedHitRate:
    """Predicts the hit rate of a state after `FEWEST` lessons. error: mean absolute error of recent predictions."""

    name: HitRateSource = "learned"

    def __init__(self) -> None:
        self._model = RecursiveLeastSquares(1, len(FEATURES), memory=MEMORY, ridge=RIDGE)
        self.samples = 0
        self.error = 0.0

    def teach(self, state: SensedState, rate: float) -> None:
        """Learn from one measured rate."""
        (error,) = np.abs(self._model.learn(_features(state), np.array([rate])))
        keeps = min(ERROR_KEEPS, self.samples / (self.samples + 1))
        self.error = keeps * self.error + (1 - keeps) * float(error)
        self.samples += 1

    def estimate(self, state: SensedState) -> float | None:
        """The hit rate in this state; None before enough lessons."""
        if self.samples < FEWEST:
            return None
        return float(np.clip(self._model.predict(_features(state))[0], 0.0, 1.0))

    def to_json(self) -> str:
        """The file's text."""
        file = LearnedHitRateFile(
            features=FEATURES,
            coefficients=tuple(self._model.coefficients_TP[0].tolist()),
            samples=self.samples,
            error=self.error,
        )
        return file.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "learned hit rate") -> Self:
        """Parse a file's text. AdaptiveError in one line for another kind of file, or other features."""
        try:
            file = LearnedHitRateFile.model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(where, one_line(error), next_step="learn it again") from error
        if file.features != FEATURES or len(file.coefficients) != len(FEATURES):
            raise AdaptiveError(where, f"features {', '.join(file.features)}", allowed=", ".join(FEATURES))
        learned = cls()
        learned._model.coefficients_TP[0] = file.coefficients
        learned.samples, learned.error = file.samples, file.error
        return learned


def _features(state: SensedState) -> NDArray[np.float64]:
    """Features (1, P); unknown values count as 0, which is consistent on one device."""
    waiting = state.pressure_cpu.since_last if state.pressure_cpu else None
    runnable = (state.runnable or 0) / max(state.usable_cpus or 1.0, 1e-3)
    values = (1.0, state.cpu_use_others, waiting, state.memory_use, runnable / (1 + runnable))
    return np.array([[0.0 if value is None else value for value in values]])

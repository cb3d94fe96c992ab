"""The response of the common factor to the load: a regression of its logarithm on the load, learned while serving."""

import numpy as np

from adaptive_runtime.base.least_squares import RecursiveLeastSquares

MEMORY = 300.0
"""Number of changes of the load."""
RIDGE = 0.05
FIRST = 2
"""Lessons that initialise level and slope: their errors are the response itself, not the noise around it."""
FEWEST = 4
"""Lessons before the slope may be used: a load that comes and goes is known when it comes for the third time."""
INFLATION = 4.0
"""Successive errors are alike, so they carry less information than as many independent ones."""
SIGNIFICANT = 2.0
ERROR_KEEPS = 0.98


class LoadResponse:
    """slope: logarithm of the factor for one unit of load, 0 until it is significantly above 0. variance: of the slope."""

    def __init__(self) -> None:
        self._model = RecursiveLeastSquares(1, 2, memory=MEMORY, ridge=RIDGE)
        self._load: float | None = None
        self._values: list[float] = []
        self._count = 0
        self._error = 0.0
        self.slope = 0.0
        self.variance = 0.0

    @property
    def load(self) -> float | None:
        """The load under which the last request was served."""
        return self._load

    def observe(self, value: float, load: float) -> None:
        """Observe the logarithm of a request's factor. Requests under one load are one lesson, by their median."""
        if self._load is not None and load != self._load:
            self._learn(float(np.median(self._values)), self._load)
            self._values = []
        self._load = load
        self._values.append(value)

    def shift(self, load: float | None) -> tuple[float, float]:
        """The change of the factor's logarithm under another load, and its variance."""
        if load is None or self._load is None:
            return 0.0, 0.0
        change = load - self._load
        return self.slope * change, self.variance * change * change

    def _learn(self, value: float, load: float) -> None:
        (error,) = self._model.learn(np.array([[1.0, load]]), np.array([value]))
        self._count += 1
        if self._count > FIRST:
            keeps = min(ERROR_KEEPS, 1 - 1 / (self._count - FIRST))
            self._error = keeps * self._error + (1 - keeps) * float(error) ** 2
        slope = float(self._model.coefficients_TP[0, 1])
        variance = INFLATION * self._error * float(self._model.inverse_TPP[0, 1, 1])
        used = self._count >= FEWEST and slope > SIGNIFICANT * np.sqrt(variance)
        self.slope, self.variance = (slope, variance) if used else (0.0, 0.0)

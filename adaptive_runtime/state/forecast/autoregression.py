"""An autoregressive model of a signal, for several horizons at once, learned by recursive least squares.

Each horizon has its own coefficients, which predict the change from now; without data all are 0, which forecasts "as now"
(persistence). A step takes O(H · order²). Legend: H horizons of 1, 2, … steps; P features.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.least_squares import RecursiveLeastSquares

Values = NDArray[np.float64]
MEMORY = 150.0
RIDGE = 0.1
MEAN_KEEPS = 0.98
OFFSET = 0.1
"""The constant among the features: as large as a usual change of a signal between 0 and 1."""


class Autoregression:
    """Learns from a signal of about 0 to 1, one value per step. order: number of past values that count."""

    def __init__(self, horizons: int, order: int) -> None:
        self._model = RecursiveLeastSquares(horizons, order + 1, memory=MEMORY, ridge=RIDGE)
        self._horizons = horizons
        self._values: deque[float] = deque(maxlen=order)
        self._past: deque[tuple[float, Values]] = deque(maxlen=horizons)
        self._mean = 0.0
        self._count = 0

    def observe(self, value: float) -> None:
        """Add the next value."""
        if len(self._past) == self._horizons:
            features_HP = np.stack([features_P for _, features_P in reversed(self._past)])
            changes_H = np.array([value - before for before, _ in reversed(self._past)])
            self._model.learn(features_HP, changes_H)
        self._count += 1
        self._mean += (value - self._mean) * max(1 - MEAN_KEEPS, 1 / self._count)
        self._values.append(value)
        if len(self._values) == self._values.maxlen:
            self._past.append((value, self._features()))

    def forecast(self) -> Values | None:
        """Forecast values at each horizon (H,); None before there are enough values."""
        if not self._past:
            return None
        value, features_P = self._past[-1]
        forecast_H: Values = value + self._model.coefficients_TP @ features_P
        return forecast_H

    def interrupt(self) -> None:
        """A value is missing: the next values are not treated as a continuation of the last ones."""
        self._values.clear()
        self._past.clear()

    def _features(self) -> Values:
        """A constant, the last value's distance from the mean, and the last changes."""
        values = np.array(self._values)
        return np.concatenate([[OFFSET, values[-1] - self._mean], np.diff(values)])

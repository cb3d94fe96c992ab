"""A running backtest: forecasts of several methods against the true values over the last steps.

Legend: M methods, H horizons.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


class Backtest:
    """Mean absolute errors of methods over a window. Forecasts are kept until their true values are known."""

    def __init__(self, horizons: int, window: int) -> None:
        self._open: deque[Values] = deque(maxlen=horizons)
        self._errors: deque[Values] = deque(maxlen=window)

    @property
    def steps(self) -> int:
        """Number of steps in the window for which all horizons were compared."""
        return len(self._errors)

    def observe(self, value: float) -> None:
        """Compare the true value with its forecasts."""
        if len(self._open) == self._open.maxlen:
            forecasts_MH = np.stack([made_MH[:, ahead] for ahead, made_MH in enumerate(reversed(self._open))], axis=1)
            self._errors.append(np.abs(forecasts_MH - value))

    def made(self, forecasts_MH: Values) -> None:
        """Add the forecasts of this step, of each method for each horizon."""
        self._open.append(forecasts_MH)

    def interrupt(self) -> None:
        """A value is missing: drop all open forecasts."""
        self._open.clear()

    def errors(self) -> Values | None:
        """Mean absolute errors (M, H); None before the first comparison."""
        return np.mean(self._errors, axis=0) if self._errors else None

    def gain(self, method: int, against: int) -> tuple[Values, Values]:
        """Mean reduction of a method's error compared with another's, and its standard error: (H,), (H,)."""
        errors_NMH = np.stack(self._errors)
        gains_NH = errors_NMH[:, against] - errors_NMH[:, method]
        return gains_NH.mean(0), gains_NH.std(0) / np.sqrt(len(gains_NH))

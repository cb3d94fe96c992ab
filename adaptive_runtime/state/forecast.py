"""The near future of a signal, for example the load index: by an autoregressive model if a running backtest finds it better.

[Sensing](docs/runtime_sensing.md#forecast) explains how.

An autoregressive model of a signal, for several horizons at once, learned by recursive least squares.

Each horizon has its own coefficients, which predict the change from now; without data all are 0, which forecasts "as now"
(persistence). A step takes O(H · order²). Legend: H horizons of 1, 2, … steps; P features.

A running backtest: forecasts of several methods against the true values over the last steps.

Legend: M methods, H horizons.

Forecasts by the recently better method: the autoregressive model, or "as now" (persistence).

Legend: H horizons of 1, 2, … steps; M methods: as now, autoregressive, the used one.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.numbers import RecursiveLeastSquares

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


ForecastMethod = Literal["as now", "autoregressive"]
AS_NOW, AUTOREGRESSIVE, USED = 0, 1, 2
METHODS = 3
WINDOW = 60
FEWEST = 20
SURE = 2.0
"""Standard errors by which the model must have been better. Signals that rest and jump make it look better by chance."""
MOST_LOST = 1.02
"""Fall back to persistence when the used forecasts' error exceeds persistence's by this factor."""
REMEMBERED = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """values_H: the signal at each horizon. methods: the method of each value.

    Recent mean absolute errors of each method and of the used forecasts (H,), NaN before there are any; `used_errors_H` minus
    `as_now_errors_H` is the loss from choosing a method instead of always using "as now".
    """

    values_H: Values
    methods: tuple[ForecastMethod, ...]
    as_now_errors_H: Values
    autoregressive_errors_H: Values
    used_errors_H: Values


class Forecaster:
    """Forecasts one signal between `low` and `high`, which is observed once a step.

    The autoregressive model is used for a horizon if its error over the last `WINDOW` steps was smaller than that of "as now"
    by
    `SURE` standard errors, at least `FEWEST` steps were compared, and the used forecasts have not lost. A forecast stays within
    the range of the last `REMEMBERED` values.
    """

    def __init__(self, *, horizons: int = 5, order: int = 8, low: float = 0.0, high: float = 1.0) -> None:
        if horizons < 1 or order < 2 or not low < high:
            got = f"horizons {horizons}, order {order}, range {low:g} to {high:g}"
            raise AdaptiveError("forecast", got, allowed="horizons from 1, order from 2, low below high")
        self._horizons, self._low, self._scale = horizons, low, high - low
        self._model = Autoregression(horizons, order)
        self._backtest = Backtest(horizons, WINDOW)
        self._recent: deque[float] = deque(maxlen=REMEMBERED)
        self._forecast: Forecast | None = None

    @property
    def forecast(self) -> Forecast | None:
        """The forecast from the last value on; None before the first."""
        return self._forecast

    def observe(self, value: float | None) -> Forecast | None:
        """Observe the next value of the signal. None: the value is unknown, and the last forecast stays."""
        if value is None:
            self._model.interrupt()
            self._backtest.interrupt()
            return self._forecast
        if not np.isfinite(value):
            raise AdaptiveError("forecast", f"value {value}", allowed="a finite number, or None")
        scaled = (value - self._low) / self._scale
        self._recent.append(scaled)
        self._backtest.observe(scaled)
        self._model.observe(scaled)
        self._forecast = self._next(scaled)
        return self._forecast

    def _next(self, now: float) -> Forecast:
        as_now_H = np.full(self._horizons, now)
        modelled_H = self._model.forecast()
        modelled_H = as_now_H if modelled_H is None else np.clip(modelled_H, min(self._recent), max(self._recent))
        errors_MH = self._backtest.errors()
        if errors_MH is None:
            errors_MH = np.full((METHODS, self._horizons), np.nan)
        better_H = self._better(errors_MH)
        used_H = np.where(better_H, modelled_H, as_now_H)
        self._backtest.made(np.stack([as_now_H, modelled_H, used_H]))
        errors_MH = errors_MH * self._scale
        return Forecast(
            values_H=self._low + self._scale * used_H,
            methods=tuple("autoregressive" if better else "as now" for better in better_H),
            as_now_errors_H=errors_MH[AS_NOW],
            autoregressive_errors_H=errors_MH[AUTOREGRESSIVE],
            used_errors_H=errors_MH[USED],
        )

    def _better(self, errors_MH: Values) -> NDArray[np.bool_]:
        """Horizons for which the model is used (H,)."""
        if self._backtest.steps < FEWEST:
            return np.zeros(self._horizons, bool)
        gain_H, error_H = self._backtest.gain(AUTOREGRESSIVE, AS_NOW)
        better_H: NDArray[np.bool_] = (gain_H > SURE * error_H) & (errors_MH[USED] <= MOST_LOST * errors_MH[AS_NOW])
        return better_H

"""The slow-down factor that all variants share: a Kalman filter of its logarithm, as in ALERT (USENIX ATC 2020).

The factor drifts as a random walk, whose variance follows the recent corrections; the variance of single requests comes from
differences of successive requests. Disturbances of a request, such as waiting for a core, take a time that hardly depends on
its length, the predicted latency: the deviation of the logarithm is taken as inverse to the length, within `MOST_SCALED`.
Without requests the factor returns to the average of the last ones; otherwise a level at which no variant runs would never
end. A single outlier moves the factor by no more than a usual value could; a second one to the same side is a step, and the
factor moves to the nearer of the two.
"""

import math
from collections import deque
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

GATE = 3.0
"""Deviations beyond which a value is an outlier."""
LEAST_DRIFT = 1e-4
DRIFT_KEEPS = 0.8
LEAST_NOISE = 1e-4
FIRST_NOISE = 2.5e-3
FIRST_VARIANCE = 0.25
MOST_SCALED = 4.0
"""Limit of the ratio between the deviation of other variants and that of the last served one, in both directions."""
NOISE_VALUES = 32
FEWEST_VALUES = 8
SIGMA_OF_MEDIAN = 1.4826
"""Deviation of a normal distribution, as a multiple of the median distance from its middle."""
HALF_S = 10.0
"""After this time without a request the factor is half-way between its level and the average of the last requests."""
IDLE_DRIFT_PER_S = 1e-3
MOST_IDLE_S = 60.0


def octaves_V(latency_ms_V: NDArray[np.float64]) -> NDArray[np.int64]:
    """Logarithms to base 2 of latencies, rounded (V,)."""
    return np.round(np.log2(latency_ms_V)).astype(np.int64)


class CommonFactor:
    """log_mean, variance: of the logarithm of the factor."""

    def __init__(self) -> None:
        self.log_mean = 0.0
        self.variance = FIRST_VARIANCE
        self._noise_ms: float | None = None  # deviation of a request, times its predicted latency
        self._served_ms = 1.0
        self._drift = LEAST_DRIFT
        self._outlier: float | None = None
        self._values: deque[tuple[float, float]] = deque(maxlen=NOISE_VALUES)
        self._usual = 0.0
        self._at_s: float | None = None

    def at(self, at_s: float | None) -> tuple[float, float]:
        """Mean and variance of the logarithm at a time since the last request. A clock that runs backwards adds nothing."""
        if at_s is None or self._at_s is None:
            return self.log_mean, self.variance
        idle_s = max(0.0, at_s - self._at_s)
        variance = self.variance + IDLE_DRIFT_PER_S * min(MOST_IDLE_S, idle_s)
        if len(self._values) < FEWEST_VALUES:
            return self.log_mean, variance
        left, off = 0.5 ** (idle_s / HALF_S), self.log_mean - self._usual
        return self._usual + left * off, variance + left * (1 - left) * off * off

    def move(self, by: float) -> None:
        """Shift all learned values when their meaning changes."""
        self.log_mean += by
        self._values = deque(((value + by, latency_ms) for value, latency_ms in self._values), maxlen=NOISE_VALUES)
        self._usual += by
        self._outlier = None if self._outlier is None else self._outlier + by

    def noise(self, length_ms: float) -> float:
        """Variance of the logarithm of one request of a variant with this length."""
        if self._noise_ms is None:
            return FIRST_NOISE
        scaled_ms = min(MOST_SCALED * self._served_ms, max(self._served_ms / MOST_SCALED, length_ms))
        return max(LEAST_NOISE, (self._noise_ms / scaled_ms) ** 2)

    def noise_V(self, length_ms_V: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same for all variants (V,)."""
        if self._noise_ms is None:
            return np.full(len(length_ms_V), FIRST_NOISE)
        scaled_ms_V = np.clip(length_ms_V, self._served_ms / MOST_SCALED, MOST_SCALED * self._served_ms)
        return np.maximum(LEAST_NOISE, (self._noise_ms / scaled_ms_V) ** 2)

    def observe(self, value: float, at_s: float, length_ms: float) -> None:
        """Observe the logarithm of measured / predicted of one request."""
        self.log_mean, variance = self.at(at_s)
        self.variance = variance + self._drift
        self._at_s = at_s
        self._served_ms = length_ms
        self._values.append((value, length_ms))
        self._usual = sum(one for one, _ in self._values) / len(self._values)
        self._learn_noise()
        error, noise = value - self.log_mean, self.noise(length_ms)
        gate = GATE * math.sqrt(self.variance + noise)
        if abs(error) <= gate:
            self._outlier = None
        elif self._outlier is not None and (self._outlier - self.log_mean) * error > 0:
            error = math.copysign(min(abs(error), abs(self._outlier - self.log_mean)), error)
            self.variance = max(self.variance, error * error)
            self._outlier = None
        else:
            self._outlier = value
            error = math.copysign(gate, error)
        gain = self.variance / (self.variance + noise)
        self.log_mean += gain * error
        self.variance *= 1 - gain
        self._drift = max(LEAST_DRIFT, DRIFT_KEEPS * self._drift + (1 - DRIFT_KEEPS) * min(1.0, (gain * error) ** 2))

    def _learn_noise(self) -> None:
        """Learn the noise from the median difference of successive values: few of them are steps or outliers."""
        if len(self._values) < FEWEST_VALUES:
            return
        differences = [
            abs(after - before) / math.hypot(1 / before_ms, 1 / after_ms)
            for (before, before_ms), (after, after_ms) in pairwise(self._values)
        ]
        self._noise_ms = SIGMA_OF_MEDIAN * median(differences)

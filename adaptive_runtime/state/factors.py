"""Slow-down factors: the common factor of all variants, own factors of variants, and the response to load.

The common factor is a Kalman filter of its logarithm, as in ALERT (USENIX ATC 2020). The factor drifts as a random
walk, whose variance follows the recent corrections; the variance of single requests comes from differences of
successive requests. Disturbances of a request, such as waiting for a core, take a time that hardly depends on its
length, the predicted latency: the deviation of the logarithm is taken as inverse to the length, within `MOST_SCALED`.
Without requests the factor returns to the average of its last values; otherwise a level at which no variant runs would
never end. A single outlier moves the factor by no more than a usual value could; a second outlier to the same side is a
step, and the factor moves to the nearer of the two.

The time beside the run, for scaling and starting it, is the same for all variants, so it weighs most for the fastest.
Load multiplies it as it does their runs. Own factors of variants multiply the common one. One extended Kalman filter
holds the common logarithm, the time beside, and the own logarithms of the most recently served variants; their
covariance divides an error among them. Data cannot show which of two differing variants is the normal one, so an own
factor is measured against the mean of all served variants. It is used if it is further from 1 than `SIGNIFICANT`
deviations.

The response to load is a regression of the factor's logarithm on the load, learned while serving.

Legend: V variants, S variants with a place in the filter.
"""

import math
from collections import deque
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.numbers import RecursiveLeastSquares

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


PLACES = 32
COMMON, BESIDE = 0, 1
"""Rows of the filter; those of variants follow."""
VARIANTS = 2
BESIDE_DEVIATION = 0.5
"""Prior deviation of the time beside the run, as a share of the latency of the fastest variant."""
DEVIATION = 0.1
"""Prior deviation of own logarithms: variants differ by some 10 %."""
MEMORY_S = 600.0
"""Time in which an own factor that is not observed falls to a third."""
AGED_EVERY_S = 1.0
SIGNIFICANT = 4.0
COMMON_FIRST = 1.0


class OwnFactors:
    """log_V: logarithm of the own factor if it is used, else 0. variance_V: its variance. used_V: whether it is used.

    beside_ms: time of every request beside its run on the quiet device. predicted_ms_V: the runs' latencies there.
    """

    def __init__(self, predicted_ms_V: Values) -> None:
        variants = len(predicted_ms_V)
        self.log_V: Values = np.zeros(variants)
        self.variance_V: Values = np.full(variants, DEVIATION**2)
        self.used_V = np.zeros(variants, bool)
        self.beside_ms = 0.0
        self._predicted_ms_V = predicted_ms_V
        self._variants: list[int] = []
        self._mean = np.zeros(VARIANTS)
        self._covariance = np.diag([COMMON_FIRST, (BESIDE_DEVIATION * float(predicted_ms_V.min())) ** 2])
        self._at_s: float | None = None

    def observe(self, variant: int, measured_ms: float, *, at_s: float, drift: float, noise: float) -> None:
        """Observe one request. drift: variance by which the common logarithm may have moved since the previous request.

        noise: variance of the logarithm of one request.
        """
        place = self._place(variant)
        self._age(at_s)
        self._covariance[COMMON, COMMON] += drift
        length_ms = float(self._predicted_ms_V[variant] + self._mean[BESIDE])
        error = np.log(measured_ms / length_ms) - self._mean[COMMON] - self._mean[place]
        seen = np.zeros(len(self._mean))
        seen[[COMMON, BESIDE, place]] = 1.0, 1.0 / length_ms, 1.0
        spread = self._covariance @ seen
        whole = seen @ spread + noise
        if error * error > GATE * GATE * whole:  # a step of the load is likelier than a difference between variants
            self._covariance[COMMON, COMMON] += error * error
            spread = self._covariance @ seen
            whole = seen @ spread + noise
        self._mean += spread * (error / whole)
        self._mean[BESIDE] = max(0.0, self._mean[BESIDE])
        self._covariance -= np.outer(spread, spread) / whole
        if len(self._variants) > 1:  # one variant alone carries no information about it
            self.beside_ms = float(self._mean[BESIDE])
        self._tell()

    def _place(self, variant: int) -> int:
        """The variant's row in the filter; the least recently served variant makes room."""
        last = VARIANTS - 1
        if self._variants and self._variants[-1] == variant:
            return last + len(self._variants)
        if variant in self._variants:
            at = self._variants.index(variant)
            others = (VARIANTS + other for other in range(len(self._variants)) if other != at)
            order = [*range(VARIANTS), *others, VARIANTS + at]
            self._variants.append(self._variants.pop(at))
            self._mean, self._covariance = self._mean[order], self._covariance[np.ix_(order, order)]
            return last + len(self._variants)
        if len(self._variants) == PLACES:
            gone = self._variants.pop(0)
            self.log_V[gone], self.variance_V[gone], self.used_V[gone] = 0.0, DEVIATION**2, False
            self._mean = np.delete(self._mean, VARIANTS)
            self._covariance = np.delete(np.delete(self._covariance, VARIANTS, 0), VARIANTS, 1)
        self._variants.append(variant)
        self._mean = np.append(self._mean, 0.0)
        grown = np.zeros((len(self._mean), len(self._mean)))
        grown[:-1, :-1] = self._covariance
        grown[-1, -1] = DEVIATION**2
        self._covariance = grown
        return last + len(self._variants)

    def _age(self, at_s: float) -> None:
        """Let own factors decay towards 1, and their uncertainty to the prior; about once a second."""
        passed_s = 0.0 if self._at_s is None else at_s - self._at_s
        if self._at_s is not None and 0.0 <= passed_s < AGED_EVERY_S:
            return
        self._at_s, passed_s = at_s, max(0.0, passed_s)
        keeps = np.full(len(self._mean), np.exp(-passed_s / MEMORY_S))
        keeps[:VARIANTS] = 1.0
        self._mean = keeps * self._mean
        self._covariance = keeps[:, None] * self._covariance * keeps
        self._covariance += np.diag((1 - keeps**2) * DEVIATION**2)

    def _tell(self) -> None:
        """Update own factors, relative to the mean of all with a place."""
        count = len(self._variants)
        own_S, covariance_SS = self._mean[VARIANTS:], self._covariance[VARIANTS:, VARIANTS:]
        from_mean_S = own_S - own_S.mean()
        rows_S = covariance_SS.mean(1)
        variance_S = np.maximum(np.diag(covariance_SS) - 2 * rows_S + covariance_SS.mean(), 0.0)
        used_S = from_mean_S**2 > SIGNIFICANT**2 * variance_S if count > 1 else np.zeros(count, bool)
        places = np.array(self._variants)
        self.log_V[places] = np.where(used_S, from_mean_S, 0.0)
        self.variance_V[places] = variance_S
        self.used_V[places] = used_S


MEMORY = 300.0
"""Number of changes of the load."""
RIDGE = 0.05
FIRST = 2
"""Lessons that initialise level and slope: their errors are the response itself, not the noise around it."""
FEWEST = 4
"""Lessons before the slope may be used: a load that comes and goes is known when it comes for the third time."""
INFLATION = 4.0
"""Successive errors are alike, so they carry less information than as many independent ones."""
SIGNIFICANT_SLOPE = 2.0
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
        used = self._count >= FEWEST and slope > SIGNIFICANT_SLOPE * np.sqrt(variance)
        self.slope, self.variance = (slope, variance) if used else (0.0, 0.0)

"""Deviations of single variants from the common slow-down: a time that each request takes beside its run, and own factors.

The time beside the run, for scaling and starting it, is the same for all variants, so it weighs most for the fastest. Load
multiplies it as it does their runs. Own factors multiply the common one.

One extended Kalman filter holds the common logarithm, the time beside, and the own logarithms of the most recently served
variants; their covariance divides an error among them. Data cannot show which of two differing variants is the normal one, so
an own factor is measured against the mean of all served variants. It is used if it is further from 1 than `SIGNIFICANT`
deviations.

Legend: V variants, S variants with a place in the filter.
"""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
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
GATE = 3.0


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

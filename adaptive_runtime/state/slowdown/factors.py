"""The slow-down of all variants: fed by served requests, and by the load that is foreseen. Legend: V variants.

slow = SlowDown(predicted_ms_V)
slow.observe(variant, measured_ms, at_s, load)
slow.expect(foreseen_load).quantile_ms_V(0.99)
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.slowdown.common import CommonFactor, octaves_V
from adaptive_runtime.state.slowdown.expectation import LatencyExpectation, deviation_of
from adaptive_runtime.state.slowdown.own import OwnFactors
from adaptive_runtime.state.slowdown.response import LoadResponse
from adaptive_runtime.state.slowdown.scores import RequestScores
from adaptive_runtime.state.slowdown.slowest import SlowestRequests

NOTICEABLE = 0.01
"""Least change of the time beside the runs, relative to the fastest request, that is adopted."""
Values = NDArray[np.float64]


class SlowDown:
    """Factors of measured to predicted latency. predicted_ms_V: latency of each variant on the quiet device.

    at_s is that of the monotonic clock. AdaptiveError for a latency that is not above 0, or an unknown variant.
    """

    def __init__(self, predicted_ms_V: Sequence[float] | Values) -> None:
        self._predicted_ms_V: Values = np.array(predicted_ms_V, np.float64)
        if self._predicted_ms_V.ndim != 1 or not len(self._predicted_ms_V):
            raise AdaptiveError(
                "slow-down", f"shape {self._predicted_ms_V.shape}", allowed="one latency for each variant"
            )
        if not (np.isfinite(self._predicted_ms_V).all() and (self._predicted_ms_V > 0).all()):
            raise AdaptiveError("slow-down", "a predicted latency that is not above 0", next_step="measure it again")
        self._common = CommonFactor()
        self._own = OwnFactors(self._predicted_ms_V)
        self._beside_at(0.0)
        self._response = LoadResponse()
        self._scores, self._slowest = RequestScores(), SlowestRequests()
        self._moved = 0.0  # shift of the level by the last request, squared
        self._served = False

    def observe(self, variant: int, measured_ms: float, at_s: float, load: float | None = None) -> None:
        """Observe a served request. load: of the device at that time, for example the load index."""
        self._check(variant, measured_ms, at_s)
        length_ms = float(self._length_ms_V[variant])
        noise, before = self._common.noise(length_ms), self._log(variant)
        level, variance = self._common.at(at_s)
        if self._served:
            factor = measured_ms / math.exp(before + level)
            spread = math.sqrt(variance + noise + float(self._own.variance_V[variant]))
            self._scores.observe(deviation_of(factor) / spread)
        self._served = True
        drift = variance - self._common.variance + self._moved
        self._own.observe(variant, measured_ms, at_s=at_s, drift=drift, noise=noise)
        if abs(self._own.beside_ms - self._beside_ms) > NOTICEABLE * (self._shortest_ms + self._beside_ms):
            self._beside_at(self._own.beside_ms)
        after = self._log(variant)
        if after != before:
            self._common.move(before - after)
        value = math.log(measured_ms) - after
        self._slowest.observe(measured_ms, math.exp(after))
        level = self._common.log_mean
        self._common.observe(value, at_s, length_ms)
        self._moved = (self._common.log_mean - level) ** 2
        if load is not None:
            self._response.observe(value, load)

    def observe_runs(self, variants: Sequence[int], measured_ms: float, at_s: float, load: float | None = None) -> None:
        """Observe a request of several runs, with their total time, as one of their first variant.

        Disturbances of runs are occasional: their sum carries more information than single runs.
        """
        whole_ms = sum(float(self._whole_ms_V[variant]) for variant in variants)
        first = variants[0]
        self.observe(first, measured_ms * float(self._whole_ms_V[first]) / whole_ms, at_s, load)

    def expect(self, load: float | None = None, at_s: float | None = None) -> LatencyExpectation:
        """The expected latency of the next request of each variant.

        load: foreseen, in the measure of `observe`; None: as now. at_s: now; time without requests makes it less certain.
        """
        shift, shift_variance = self._response.shift(load)
        level, variance = self._common.at(at_s)
        noise_V = self._common.noise_V(self._length_ms_V)
        own_V = np.exp(self._own.log_V)
        return LatencyExpectation(
            predicted_ms_V=self._whole_ms_V,
            log_mean_V=level + shift + self._own.log_V,
            log_deviation_V=np.sqrt(variance + shift_variance + noise_V + self._own.variance_V),
            own_V=self._own.used_V.copy(),
            score=self._scores.quantile,
            most_V=lambda q: own_V * self._slowest.factors_V(self._whole_ms_V * own_V, q),
        )

    def _beside_at(self, beside_ms: float) -> None:
        """Set the time beside the runs. Lengths are rounded to powers of two: variants of similar length scatter alike."""
        self._beside_ms, self._shortest_ms = beside_ms, float(self._predicted_ms_V.min())
        self._whole_ms_V: Values = self._predicted_ms_V + beside_ms
        self._length_ms_V: Values = np.exp2(octaves_V(self._whole_ms_V).astype(np.float64))

    def _log(self, variant: int) -> float:
        """Logarithm of a variant's whole latency without load [ms], with its own factor."""
        return math.log(self._whole_ms_V[variant]) + float(self._own.log_V[variant])

    def _check(self, variant: int, measured_ms: float, at_s: float) -> None:
        if not 0 <= variant < len(self._predicted_ms_V):
            raise AdaptiveError("slow-down", f"variant {variant}", allowed=f"0 to {len(self._predicted_ms_V) - 1}")
        if not (math.isfinite(measured_ms) and measured_ms > 0 and math.isfinite(at_s)):
            raise AdaptiveError("slow-down", f"{measured_ms} ms at {at_s} s", allowed="finite times, a latency above 0")

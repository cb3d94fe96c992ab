"""Latencies under load: one slow-down factor for all variants, own factors if data show them, and the effect of load.

[Sensing](docs/runtime_sensing.md#slow-down) explains how.

Served requests and the foreseen load feed the slow-down, which gives the expected latency of each variant's next
request:

slow = SlowDown(predicted_ms_V)
slow.observe(variant, measured_ms, at_s, load)
slow.expect(foreseen_load).quantile_ms_V(0.99)

Quantiles come from the distances of the last requests from their expectation, in deviations. The slowest of the last
requests bounds how slow requests become: a load that comes and goes makes requests either fast or slow, and by mean and
deviation alone some requests would be expected to be much slower than any is.

Legend: V variants.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.factors import CommonFactor, LoadResponse, OwnFactors, octaves_V

MOST_LOG = 100.0
"""Cap on the logarithm of a factor and on its variance. Beyond it, a table does not fit the device; both stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyExpectation:
    """Latency of one request by variant: predicted_ms_V times a factor, whose logarithm has a mean and a deviation.

    predicted_ms_V: latency of the request on the quiet device, including its time beside the run. log_deviation_V: from the
    uncertainty of the factor and the noise of a single request. own_V: whether the variant's own factor is used. score:
    deviations above the mean within which a share of requests stays. most_V: for a share, the factors by variant (V,) that no
    recent request exceeds, if enough requests are known.
    """

    predicted_ms_V: Values
    log_mean_V: Values
    log_deviation_V: Values
    own_V: NDArray[np.bool_]
    score: Callable[[float], float]
    most_V: Callable[[float], Values]

    def factors_V(self) -> tuple[Values, Values]:
        """Mean and variance of the factor of one request, by variant: (V,), (V,)."""
        variance_V = np.minimum(self.log_deviation_V**2, MOST_LOG)
        mean_V = np.exp(np.clip(self.log_mean_V + variance_V / 2, -MOST_LOG, MOST_LOG))
        return mean_V, mean_V**2 * np.expm1(variance_V)

    def mean_ms_V(self) -> Values:
        """Mean latency by variant [ms] (V,)."""
        return self.predicted_ms_V * self.factors_V()[0]

    def quantile_ms_V(self, q: float) -> Values:
        """Latency that a share `q` of requests does not exceed, by variant [ms] (V,)."""
        if not 0.0 < q < 1.0:
            raise AdaptiveError("quantile", f"{q:g}", allowed="above 0 and below 1")
        quantile_ms_V: Values = self.predicted_ms_V * self.quantile_factors_V(q)
        return quantile_ms_V

    def quantile_factors_V(self, q: float) -> Values:
        """The factor that a share `q` of requests does not exceed, by variant (V,)."""
        level_V, most_V = np.exp(np.clip(self.log_mean_V, -MOST_LOG, MOST_LOG)), self.most_V(q)
        found_V: Values = level_V * stretched(self.score(q) * self.log_deviation_V)
        return np.where(level_V <= most_V, np.minimum(found_V, most_V), found_V)


def stretched(deviations: Values) -> Values:
    """The factor of a request at this distance from the mean: disturbances add to its latency, so upwards it is linear."""
    return np.where(deviations > 0, 1 + deviations, np.exp(np.minimum(deviations, 0.0)))


def deviation_of(factor: float) -> float:
    """The inverse of `stretched`."""
    return factor - 1 if factor > 1 else math.log(factor)


REMEMBERED_SCORES = 2048
BEYOND = 10
"""Number of scores beyond a quantile that make it known. Higher quantiles are as in a normal distribution, and no lower than
the highest known one.
"""
MOST_ABOVE_NORMAL = 1.6
"""Cap on a quantile relative to that of a normal distribution: underestimated deviations give wild scores."""
LEAST_KNOWN = 0.8
"""Lower quantiles carry no information about the tail."""
RENEWED_EVERY = 32


class RequestScores:
    """Scores of the last requests. A quantile is renewed every `RENEWED_EVERY` requests."""

    def __init__(self) -> None:
        self._scores = np.zeros(REMEMBERED_SCORES)
        self._count = 0
        self._known: dict[float, tuple[int, float]] = {}

    def observe(self, score: float) -> None:
        """Observe one request: measured minus expected logarithm, in deviations."""
        self._scores[self._count % REMEMBERED_SCORES] = score
        self._count += 1

    def quantile(self, q: float) -> float:
        """Deviations above the mean within which a share `q` of requests stayed."""
        counted, score = self._known.get(q, (-RENEWED_EVERY, 0.0))
        if self._count - counted >= RENEWED_EVERY:
            score = self._quantile(q)
            self._known = {**self._known, q: (self._count, score)} if len(self._known) < RENEWED_EVERY else {}
        return score

    def _quantile(self, q: float) -> float:
        scores = self._scores[: min(self._count, REMEMBERED_SCORES)]
        known = 1 - BEYOND / max(1, len(scores))
        above = NormalDist().inv_cdf(q)
        if q <= known:
            score = _empirical(scores, q)
        else:
            score = above if known < LEAST_KNOWN else max(above, _empirical(scores, known))
        return min(score, MOST_ABOVE_NORMAL * above) if q > LEAST_KNOWN else score


def _empirical(scores: NDArray[np.float64], q: float) -> float:
    place = min(len(scores) - 1, int(np.ceil(q * len(scores))))
    return float(np.partition(scores, place)[place])


REMEMBERED = 4096
TIMES = 3
"""A share is known after this many times the requests among which one exceeds it on average."""
ABOVE = 1.05
"""Margin over the slowest, for effects that the last requests have not shown."""


class SlowestRequests:
    """Measured over expected latency of the last requests, and the added time [ms]."""

    def __init__(self) -> None:
        self._requests: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def observe(self, measured_ms: float, quiet_ms: float) -> None:
        """Observe one request. quiet_ms: expected without load."""
        self._requests.append((measured_ms / quiet_ms, measured_ms - quiet_ms))

    def factors_V(self, quiet_ms_V: Values, q: float) -> Values:
        """The factor that no recent request would exceed, by variant (V,); infinite before enough are known.

        A disturbance of one request slows a longer one by the same factor at most, and a shorter one by the same time.
        """
        wanted = math.ceil(TIMES / (1 - q))
        if len(self._requests) < wanted:
            return np.full(len(quiet_ms_V), math.inf)
        last = islice(reversed(self._requests), wanted)
        factor, added_ms = map(max, zip(*last, strict=True))
        return ABOVE * np.maximum(factor, 1 + added_ms / quiet_ms_V)


NOTICEABLE = 0.01
"""Least change of the time beside the runs, relative to the fastest request, that is adopted."""


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

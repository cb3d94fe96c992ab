"""Expected latency of the next request of each variant. Legend: V variants."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError

Values = NDArray[np.float64]
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

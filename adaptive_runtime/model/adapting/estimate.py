"""Current slow-down of the variants for the choice, from served requests and the forecast load.

Legend: V variants.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.policy import LoadFactors, VariantTable
from adaptive_runtime.policy.inputs import deviations
from adaptive_runtime.state.slowdown import SlowDown

RATIOS = 4
"""Number of served requests of the running variant whose mean ratio of measured to predicted latency a policy sees."""
NOTICEABLE = 0.01
"""Relative change of a factor or its deviation below which the factors stay as they are."""
ASKED_AGAIN_S = 1.0
"""Time [s] without any request after which factors become less certain."""
LEAST_DEVIATIONS = 0.5
Values = NDArray[np.float64]


class LoadEstimate:
    """`SlowDown` of a table's variants as `LoadFactors`, renewed after noticeable changes.

    Variants that have served have their own factors. ratio: mean of measured over predicted latency of the last requests of the
    variant that served last; None if none has served.
    """

    def __init__(self, table: VariantTable) -> None:
        self._predicted_ms_V, self._load_class_V = table.latency_ms_V, table.load_class_V
        self._seen: list[int] = []
        self._like_C = self._unseen()
        self._slow = SlowDown(table.latency_ms_V)
        self.ratio: float | None = None
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._served: int | None = None
        self._asked: tuple[float | None, float] | None = None
        self._asked_s = 0.0
        self._mean_V, self._deviation_V = np.zeros(len(table)), np.zeros(len(table))
        self._factors = LoadFactors()

    def observe(self, variants: Sequence[int], measured_ms: float, at_s: float, load: float | None = None) -> None:
        """Learn from a served request.

        variants: the variants of its runs. measured_ms: their total duration [ms]. load: load index of the device meanwhile.
        """
        self._slow.observe_runs(variants, measured_ms, at_s, load)
        variant = variants[0]
        if variant != self._served:
            self._ratios.clear()
        if variant not in self._seen:
            self._seen.append(variant)
            self._like_C = self._unseen()
        self._served = variant
        self._ratios.append(measured_ms / sum(float(self._predicted_ms_V[row]) for row in variants))
        self.ratio = sum(self._ratios) / len(self._ratios)
        self._asked = None

    def factors(self, at_s: float, load: float | None, quantile: float) -> LoadFactors:
        """Factors for the next request.

        load: the forecast load. The returned mean and deviation have the same quantile as the requests.
        """
        asked = load, quantile
        if asked == self._asked and at_s < self._asked_s + ASKED_AGAIN_S:
            return self._factors
        self._asked, self._asked_s = asked, at_s
        expected = self._slow.expect(load, at_s)
        whole_V = expected.predicted_ms_V / self._predicted_ms_V
        mean_V, variance_V = expected.factors_V()
        above = deviations(quantile)
        if above < LEAST_DEVIATIONS:
            deviation_V = np.sqrt(variance_V)
        else:
            deviation_V = np.maximum(0.0, (expected.quantile_factors_V(quantile) - mean_V) / above)
        mean_V, deviation_V = whole_V * mean_V, whole_V * deviation_V
        if self._is_noticeable(mean_V, deviation_V):
            self._mean_V, self._deviation_V = mean_V, deviation_V
            own = {row: (float(mean_V[row]), float(deviation_V[row])) for row in self._seen}
            mean, deviation = (tuple(values_V[self._like_C].tolist()) for values_V in (mean_V, deviation_V))
            self._factors = LoadFactors(mean=mean, deviation=deviation, own=own)
        return self._factors

    def _unseen(self) -> NDArray[np.int64]:
        """Row per load class (C,): the fastest variant that never served, which represents all of them.

        If all have served: the fastest of all.
        """
        classes = range(int(self._load_class_V.max()) + 1)
        found = np.zeros(len(classes), np.int64)
        for load_class in classes:
            rows = np.flatnonzero(self._load_class_V == load_class)
            unseen = rows[~np.isin(rows, self._seen)]
            left = unseen if len(unseen) else rows
            found[load_class] = left[self._predicted_ms_V[left].argmin()] if len(left) else 0
        return found

    def _is_noticeable(self, mean_V: Values, deviation_V: Values) -> bool:
        bound_V = NOTICEABLE * self._mean_V
        changed_V = (np.abs(mean_V - self._mean_V) > bound_V) | (np.abs(deviation_V - self._deviation_V) > bound_V)
        return bool(changed_V.any())

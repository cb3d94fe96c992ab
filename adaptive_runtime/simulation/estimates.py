"""What a simulated policy knows of the slow-down: measured over predicted latency of served requests, the past fading."""

from math import exp, sqrt
from typing import Protocol

from adaptive_runtime.choice import LoadFactors

SURPRISE, SURPRISED = 3.0, 0.05


class LoadEstimate(Protocol):
    """`observe`: a served request. `factors`: what is expected at a time."""

    def observe(self, now_s: float, variant: int, ratio: float) -> None: ...

    def factors(self, now_s: float) -> LoadFactors: ...


class FadingEstimate:
    """One factor for all variants: mean and deviation of ratios whose weights fade by half in `half_life_s`.

    A ratio that is far from the mean, by `SURPRISE` deviations, makes the weights of earlier ones fade to `SURPRISED`.
    """

    def __init__(self, load_classes: int, *, half_life_s: float = 0.5, least_deviation: float = 0.05) -> None:
        self._classes, self._half_life_s, self._least = load_classes, half_life_s, least_deviation
        self._time_s, self._weight, self._sum, self._squares = 0.0, 0.0, 0.0, 0.0

    def observe(self, now_s: float, variant: int, ratio: float) -> None:
        kept = exp(-0.6931471805599453 * max(0.0, now_s - self._time_s) / self._half_life_s)
        known = self.factors(now_s)
        if abs(ratio - known.mean[0]) > SURPRISE * known.deviation[0]:
            kept *= SURPRISED
        self._time_s = now_s
        self._weight = kept * self._weight + 1.0
        self._sum = kept * self._sum + ratio
        self._squares = kept * self._squares + ratio * ratio

    def factors(self, now_s: float) -> LoadFactors:
        mean, deviation = 1.0, self._least
        if self._weight:
            mean = self._sum / self._weight
            deviation = max(self._least * mean, sqrt(max(0.0, self._squares / self._weight - mean * mean)))
        return LoadFactors(mean=(mean,) * self._classes, deviation=(deviation,) * self._classes)

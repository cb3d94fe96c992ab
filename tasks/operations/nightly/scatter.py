"""Rounds of a night: an operator's typical latency, and the scatter of its rounds, moderated by the scatter of the others.

Other processes on a machine make single rounds slower, and none faster. One such round of five would hide a change of an
operator, so the slowest fifth is left out. Source: Yuen, The two-sample trimmed t for unequal population variances, Biometrika
61, 1974.

Few rounds of one operator estimate their variance so badly that Student's t requires differences much larger than chance makes.
All operators of a night together show how large variances are, and how far they differ from operator to operator. Source:
Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular Biology 3, 2004.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.tables import Values

LEAST_DEVIATION = 0.002
"""Least relative deviation of rounds: smaller measured deviations are due to chance."""
LEAST_ROUNDS = 3
LEAST_KNOWN = 5
"""Least number of operators from which a common variance is estimated."""
MOST_FREEDOM = 1000.0


def typical_ms(rounds_ms: Sequence[float]) -> float:
    """The geometric mean of at least one round [ms]; with `LEAST_ROUNDS` or more rounds, without the slowest fifth."""
    return math.exp(float(_logs(rounds_ms)[: _left(rounds_ms)].mean()))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """At least `LEAST_ROUNDS` rounds without the slowest fifth, in logarithms: mean, a round's variance, number left."""

    mean: float
    variance: float
    count: int

    @classmethod
    def of(cls, rounds_ms: Sequence[float]) -> "Trimmed":
        """Statistics from latencies [ms]. For the variance, rounds of the slowest fifth count as the slowest of the others."""
        logs, count = _logs(rounds_ms), _left(rounds_ms)
        near = np.minimum(logs, logs[count - 1])
        variance = float(np.square(near - near.mean()).sum()) / (count - 1)
        return cls(float(logs[:count].mean()), max(variance, LEAST_DEVIATION**2), count)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.variance / self.count)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variances of rounds in a night: about `variance`, which counts for each operator like `freedom` further rounds."""

    variance: float
    freedom: float

    @classmethod
    def fit(cls, rounds_ms: Iterable[Sequence[float]]) -> "Scatter":
        """Fit to the rounds of all operators [ms]. Variances are assumed to follow a scaled inverse χ² distribution."""
        from scipy.optimize import brentq  # takes a second
        from scipy.special import digamma, polygamma

        known = [Trimmed.of(one) for one in rounds_ms]
        if len(known) < LEAST_KNOWN:
            return cls(variance=0.0, freedom=0.0)
        halves = np.array([(one.count - 1) / 2 for one in known])
        logs = np.log([one.variance for one in known]) - digamma(halves) + np.log(halves)
        apart = float(logs.var(ddof=1) - polygamma(1, halves).mean())  # variance between operators
        half = MOST_FREEDOM / 2
        if apart > polygamma(1, half):
            half = float(brentq(lambda one: polygamma(1, one) - apart, 1e-3, half))
        return cls(float(np.exp(logs.mean() + digamma(half) - np.log(half))), 2 * half)

    def of(self, one: Trimmed) -> tuple[float, float]:
        """The variance of the mean of an operator's rounds, and its degrees of freedom."""
        freedom = one.count - 1 + self.freedom
        variance = ((one.count - 1) * one.variance + self.freedom * self.variance) / freedom
        return variance / one.count, freedom


def _logs(rounds_ms: Sequence[float]) -> Values:
    return np.sort(np.log(rounds_ms))


def _left(rounds_ms: Sequence[float]) -> int:
    """Number of rounds without the slowest fifth."""
    return len(rounds_ms) - (max(1, len(rounds_ms) // 5) if len(rounds_ms) >= LEAST_ROUNDS else 0)


UNKNOWN = (Scatter(variance=0.0, freedom=0.0),) * 2
"""Scatters for both nights if they are unknown: each operator's variance comes from its own rounds alone."""

"""Rounds of a night: what an operator takes, and how far its rounds scatter, moderated by how far those of the others do.

Others on a machine make single rounds slower, and none faster. One such round of five would hide a change of an operator.
So the slowest fifth is left out. Source: Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61, 1974.

Few rounds of one operator tell their variance so badly that Student's t asks for much larger differences than chance makes.
All operators of a night together tell how large variances are there, and how far they differ from operator to operator.
Source: Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular Biology 3, 2004.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from solvers.tables import Values

LEAST_DEVIATION = 0.002
"""Of rounds, relative: nearer than that two rounds are by chance alone."""
LEAST_ROUNDS = 3
LEAST_KNOWN = 5
"""From so many operators on they tell anything of each other."""
MOST_FREEDOM = 1000.0


def typical_ms(rounds_ms: Sequence[float]) -> float:
    """The geometric mean of at least one round [ms]; of `LEAST_ROUNDS` or more without the slowest fifth."""
    return math.exp(float(_logs(rounds_ms)[: _left(rounds_ms)].mean()))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """At least `LEAST_ROUNDS` rounds but for the slowest fifth, in logarithms: mean, variance of a round, how many are left."""

    mean: float
    variance: float
    count: int

    @classmethod
    def of(cls, rounds_ms: Sequence[float]) -> "Trimmed":
        """From latencies [ms]. The variance is of all rounds, of which the slowest fifth count as the slowest of the others."""
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
    """Variances of rounds on a night: about `variance`, which counts for each operator like `freedom` further rounds."""

    variance: float
    freedom: float

    @classmethod
    def fit(cls, rounds_ms: Iterable[Sequence[float]]) -> "Scatter":
        """From the rounds of all operators [ms]. Variances are taken to be of a scaled inverse χ² distribution."""
        from scipy.optimize import brentq  # takes a second
        from scipy.special import digamma, polygamma

        known = [Trimmed.of(one) for one in rounds_ms]
        if len(known) < LEAST_KNOWN:
            return cls(variance=0.0, freedom=0.0)
        halves = np.array([(one.count - 1) / 2 for one in known])
        logs = np.log([one.variance for one in known]) - digamma(halves) + np.log(halves)
        apart = float(logs.var(ddof=1) - polygamma(1, halves).mean())  # what differs from operator to operator
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
    """How many rounds are not of the slowest fifth."""
    return len(rounds_ms) - (max(1, len(rounds_ms) // 5) if len(rounds_ms) >= LEAST_ROUNDS else 0)


UNKNOWN = (Scatter(variance=0.0, freedom=0.0),) * 2
"""On both nights: each operator's rounds tell their variance alone."""

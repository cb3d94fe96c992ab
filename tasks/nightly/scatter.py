"""How far the rounds of a night scatter: of each operator, moderated by how far those of the others do.

Five rounds of one operator tell their variance so badly that Student's t asks for much larger differences than chance makes.
All operators of a night together tell how large variances are here, and how far they differ from operator to operator.
Source: Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular Biology 3, 2004.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_DEVIATION = 0.002
"""Of rounds, relative: nearer than that two rounds are by chance alone."""
LEAST_KNOWN = 5
"""From so many operators on they tell anything of each other."""
MOST_FREEDOM = 1000.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """Variances of logarithms of rounds: about `variance`, which counts for each operator like `freedom` further rounds."""

    variance: float
    freedom: float

    @classmethod
    def fit(cls, rounds_ms: Iterable[Sequence[float]]) -> "Scatter":
        """From the rounds of each operator, at least two. Variances are taken to be of a scaled inverse χ² distribution."""
        from scipy.optimize import brentq  # takes a second
        from scipy.special import digamma, polygamma

        known = list(rounds_ms)
        if len(known) < LEAST_KNOWN:
            return cls(variance=0.0, freedom=0.0)
        halves = np.array([(len(one) - 1) / 2 for one in known])
        logs = np.log([_variance(one) for one in known]) - digamma(halves) + np.log(halves)
        apart = float(logs.var(ddof=1) - polygamma(1, halves).mean())  # what differs from operator to operator
        half = MOST_FREEDOM / 2
        if apart > polygamma(1, half):
            half = float(brentq(lambda one: polygamma(1, one) - apart, 1e-3, half))
        return cls(float(np.exp(logs.mean() + digamma(half) - np.log(half))), 2 * half)

    def of(self, rounds_ms: Sequence[float]) -> tuple[float, float]:
        """The variance of an operator's rounds, and its degrees of freedom."""
        own = len(rounds_ms) - 1
        freedom = own + self.freedom
        return (own * _variance(rounds_ms) + self.freedom * self.variance) / freedom, freedom


UNKNOWN = (Scatter(variance=0.0, freedom=0.0),) * 2
"""On both nights: each operator's rounds tell its variance alone."""


def _variance(rounds_ms: Sequence[float]) -> float:
    return max(float(np.var(np.log(rounds_ms), ddof=1)), LEAST_DEVIATION**2)

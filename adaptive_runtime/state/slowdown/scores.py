"""Distances of requests from their expectation, in deviations: the quantiles of the last ones."""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 2048
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
        self._scores = np.zeros(REMEMBERED)
        self._count = 0
        self._known: dict[float, tuple[int, float]] = {}

    def observe(self, score: float) -> None:
        """Observe one request: measured minus expected logarithm, in deviations."""
        self._scores[self._count % REMEMBERED] = score
        self._count += 1

    def quantile(self, q: float) -> float:
        """Deviations above the mean within which a share `q` of requests stayed."""
        counted, score = self._known.get(q, (-RENEWED_EVERY, 0.0))
        if self._count - counted >= RENEWED_EVERY:
            score = self._quantile(q)
            self._known = {**self._known, q: (self._count, score)} if len(self._known) < RENEWED_EVERY else {}
        return score

    def _quantile(self, q: float) -> float:
        scores = self._scores[: min(self._count, REMEMBERED)]
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

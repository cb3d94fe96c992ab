"""How far requests were from what was expected, in deviations: the quantiles of the last ones."""

from statistics import NormalDist

import numpy as np

REMEMBERED = 2048
BEYOND = 10
"""So many scores beyond a quantile make it known; before, the quantile is that of a normal distribution."""
RENEWED_EVERY = 32


class RequestScores:
    """Scores of the last requests. A quantile is renewed every `RENEWED_EVERY` requests."""

    def __init__(self) -> None:
        self._scores = np.zeros(REMEMBERED)
        self._count = 0
        self._known: dict[float, tuple[int, float]] = {}

    def observe(self, score: float) -> None:
        """One request: measured less expected logarithm, in deviations."""
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
        if len(scores) * (1 - q) < BEYOND:
            return NormalDist().inv_cdf(q)
        place = min(len(scores) - 1, int(np.ceil(q * len(scores))))
        return float(np.partition(scores, place)[place])

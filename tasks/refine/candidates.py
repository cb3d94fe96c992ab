"""The best SubNets by prediction around the winners of a search."""

from collections.abc import Iterator, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.predict.latency import LatencyPredictor
from tasks.search.problem import Codes, Problem, Values, neighbours, row_keys

AT_ONCE = 1 << 16
"""Codes that are made and predicted together, about."""


@dataclass(frozen=True, slots=True)
class Around:
    """What lies around the winners (n, V) of a search: one modification from any of them, two from a center.

    limits: of the problem's costs (K,), the latency's not counted.
    """

    problem: Problem
    limits: Values
    winners: Codes

    def best(self, center: Codes, limit_ms: float, count: int, known: Codes) -> list[tuple[Codes, float]]:
        """The (at most) `count` codes (V,) with the best predicted score within a predicted latency, and theirs [ms].

        center: the code (V,) that is modified twice. known: canonical codes (m, V) that are not wanted again.
        """
        if not count:
            return []
        taken = set(row_keys(known))
        best, scores = self.winners[:0], np.zeros(0)
        for codes in self._near(center):
            fits = codes[self._predicted_ms(codes) <= limit_ms]
            both, both_scores = (
                np.concatenate([best, fits]),
                np.concatenate([scores, self.problem.accuracy.score(fits)]),
            )
            rows = _first(both, np.lexsort((self._predicted_ms(both), -both_scores)), count, taken)
            best, scores = both[rows], both_scores[rows]
        return list(zip(best, self._predicted_ms(best).tolist(), strict=True))

    def top(self, starts: Codes, limit_ms: float) -> Codes:
        """Where `best` leads again and again from the best of codes (n, V) within a predicted latency; the first if none is."""
        fits = starts[self._predicted_ms(starts) <= limit_ms]
        if not len(fits):
            return starts[0]
        score = self.problem.accuracy.score
        center: Codes = fits[np.argmax(score(fits))]
        while True:
            ((better, _),) = self.best(center, limit_ms, 1, starts[:0])
            if score(better[None])[0] <= score(center[None])[0]:
                return center
            center = better

    def _near(self, center: Codes) -> Iterator[Codes]:
        singles = neighbours(self.problem.space, center[None]).codes
        yield np.concatenate([self.winners, neighbours(self.problem.space, self.winners).codes, center[None], singles])
        step = max(1, AT_ONCE // max(1, len(singles)))
        for start in range(0, len(singles), step):
            yield neighbours(self.problem.space, singles[start : start + step]).codes

    def _predicted_ms(self, codes: Codes) -> Values:
        """Infinite where an operator has no latency, and beyond the limits."""
        latency = self.problem.latency
        assert isinstance(latency, LatencyPredictor)
        known = np.flatnonzero(latency.unknown.predict(codes) == 0)
        costs = self.problem.predict_costs(codes[known])
        found = np.full(len(codes), np.inf)
        found[known] = np.where((costs[:, 1:] <= self.limits[1:]).all(axis=1), costs[:, 0], np.inf)
        return found


def _first(codes: Codes, order: NDArray[np.int64], count: int, known: Set[bytes]) -> list[int]:
    """The first rows in this order, different ones that are not known."""
    rows: dict[bytes, int] = {}
    for row in order.tolist():
        if len(rows) == count:
            break
        (key,) = row_keys(codes[row, None])
        if key not in known:
            rows.setdefault(key, row)
    return list(rows.values())

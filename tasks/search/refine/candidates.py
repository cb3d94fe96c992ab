"""The best SubNets by prediction around the winners of a search."""

from collections.abc import Iterator, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.prediction.latency import LatencyPredictor
from tasks.search.problem import Codes, Problem, Values, neighbours, row_keys

AT_ONCE = 1 << 16
"""Approximate number of codes that are made and predicted together."""


@dataclass(frozen=True, slots=True)
class Around:
    """The neighbourhood of the winners (n, V) of a search: one modification from any winner, two modifications from a center.
    limits: of the problem's costs (K,); those of latencies are ignored.
    """

    problem: Problem
    limits: Values
    winners: Codes

    def best(self, center: Codes, limits_ms: Values, count: int, known: Codes) -> list[tuple[Codes, Values]]:
        """The (at most) `count` codes (V,) with the best predicted score within predicted latencies, and their own (D,) [ms].

        center: the code (V,) that is modified twice. limits_ms: (D,), of each device. known: canonical codes (m, V), left out.
        """
        if not count:
            return []
        taken = set(row_keys(known))
        best, scores = self.winners[:0], np.zeros(0)
        for codes in self._near(center):
            fits = codes[self._fits(codes, limits_ms)]
            both, both_scores = (
                np.concatenate([best, fits]),
                np.concatenate([scores, self.problem.accuracy.score(fits)]),
            )
            shares = (self._predicted_ms(both) / limits_ms).max(axis=1)
            rows = _first(both, np.lexsort((shares, -both_scores)), count, taken)
            best, scores = both[rows], both_scores[rows]
        return list(zip(best, self._predicted_ms(best), strict=True))

    def top(self, starts: Codes, limits_ms: Values) -> Codes:
        """The code that repeated calls of `best` reach from the best of codes (n, V) within predicted latencies (D,).
        The first code if none is within them.
        """
        fits = starts[self._fits(starts, limits_ms)]
        if not len(fits):
            return starts[0]
        score = self.problem.accuracy.score
        center: Codes = fits[np.argmax(score(fits))]
        while True:
            ((better, _),) = self.best(center, limits_ms, 1, starts[:0])
            if score(better[None])[0] <= score(center[None])[0]:
                return center
            center = better

    def _near(self, center: Codes) -> Iterator[Codes]:
        singles = neighbours(self.problem.space, center[None]).codes
        yield np.concatenate([self.winners, neighbours(self.problem.space, self.winners).codes, center[None], singles])
        step = max(1, AT_ONCE // max(1, len(singles)))
        for start in range(0, len(singles), step):
            yield neighbours(self.problem.space, singles[start : start + step]).codes

    def _fits(self, codes: Codes, limits_ms: Values) -> NDArray[np.bool_]:
        fits: NDArray[np.bool_] = np.all(self._predicted_ms(codes) <= limits_ms, axis=1)
        return fits

    def _predicted_ms(self, codes: Codes) -> Values:
        """Predicted latencies (n, D) by device. Infinite if an operator has no latency, and beyond the limits."""
        timed = self.problem.timed
        is_known = np.ones(len(codes), bool)
        for latency in self.problem.costs[:timed]:
            assert isinstance(latency, LatencyPredictor)
            is_known &= latency.unknown.predict(codes) == 0
        costs = self.problem.predict_costs(codes[is_known])
        found = np.full((len(codes), timed), np.inf)
        within: NDArray[np.bool_] = np.all(costs[:, timed:] <= self.limits[timed:], axis=1)
        found[is_known] = np.where(within[:, None], costs[:, :timed], np.inf)
        return found


def _first(codes: Codes, order: NDArray[np.int64], count: int, known: Set[bytes]) -> list[int]:
    """The first rows in this order that are distinct and not known."""
    rows: dict[bytes, int] = {}
    for row in order.tolist():
        if len(rows) == count:
            break
        (key,) = row_keys(codes[row, None])
        if key not in known:
            rows.setdefault(key, row)
    return list(rows.values())

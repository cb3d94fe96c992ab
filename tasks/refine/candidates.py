"""The best SubNets by prediction around the winners of a search."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailor_ir import Space
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.search.problem import Codes, neighbours, row_keys

AT_ONCE = 1 << 16
"""Codes that are made and predicted together, about."""


@dataclass(frozen=True, slots=True)
class Around:
    """What lies around the winners (n, V) of a search: one modification from any of them, two from a center."""

    space: Space
    latency: LatencyPredictor
    accuracy: AccuracyPredictor
    winners: Codes

    def best(
        self, center: Codes, limit_ms: float, count: int, known: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Codes, float]]:
        """The (at most) `count` codes (V,) with the best predicted score within a predicted latency, and theirs [ms].

        center: the code (V,) that is modified twice. known: configs that are not wanted again.
        """
        if not count:
            return []
        taken = set(row_keys(self.space.canonical_codes(self.space.encode(known))))
        best, scores = self.winners[:0], np.zeros(0)
        for codes in self._near(center):
            fits = codes[self._predicted_ms(codes) <= limit_ms]
            both, both_scores = np.concatenate([best, fits]), np.concatenate([scores, self.accuracy.score(fits)])
            rows = _first(both, np.lexsort((self._predicted_ms(both), -both_scores)), count, taken)
            best, scores = both[rows], both_scores[rows]
        return list(zip(best, self._predicted_ms(best).tolist(), strict=True))

    def _near(self, center: Codes) -> Iterator[Codes]:
        singles = neighbours(self.space, center[None]).codes
        yield np.concatenate([self.winners, neighbours(self.space, self.winners).codes, center[None], singles])
        step = max(1, AT_ONCE // max(1, len(singles)))
        for start in range(0, len(singles), step):
            yield neighbours(self.space, singles[start : start + step]).codes

    def _predicted_ms(self, codes: Codes) -> NDArray[np.float64]:
        """Infinite where an operator has no latency."""
        unknown = self.latency.unknown.predict(codes) > 0
        found = np.full(len(codes), np.inf)
        found[~unknown] = self.latency.predict(codes[~unknown])
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

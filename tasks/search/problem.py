"""What is searched: a space of integer codes and two predictors, evaluated once per different SubNet.

Codes are integer matrices (n, V): one row per SubNet, one column per variable, entries are choice indices,
the last of which is the variable's largest choice.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Values = NDArray[np.float64]


class SearchSpace(Protocol):
    """Codes of a space; `canonical_codes` gives equal rows to equal SubNets."""

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        """Number of choices per variable (V,)."""

    def canonical_codes(self, codes: Codes, /) -> Codes: ...

    def random_codes(self, n: int, rng: np.random.Generator, /) -> Codes: ...


class LatencyModel(Protocol):
    """Predicts latency [ms] (n,) of canonical codes (n, V)."""

    def predict(self, codes: Codes, /) -> Values: ...


class AccuracyModel(Protocol):
    """Predicts accuracy (n,), a fraction; `score` (n,), which is maximised, is accuracy with ties broken."""

    def predict(self, codes: Codes, /) -> Values: ...

    def score(self, codes: Codes, /) -> Values: ...


class Scores(NamedTuple):
    """Predictions for n codes, (n,) each."""

    latency_ms: Values
    accuracy: Values
    score: Values

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Scores":
        """The scores of some rows."""
        return Scores(self.latency_ms[rows], self.accuracy[rows], self.score[rows])


@dataclass(slots=True)
class Problem:
    """A space with its predictors; every different code is predicted once and remembered."""

    space: SearchSpace
    latency: LatencyModel
    accuracy: AccuracyModel
    evaluations: int = 0
    _memo: dict[bytes, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def largest(self) -> Codes:
        """Code (V,) of the largest SubNet."""
        return np.asarray(self.space.cardinalities, np.int64) - 1

    def evaluate(self, codes: Codes) -> Scores:
        """Scores of canonical codes (n, V); only codes not seen before reach the predictors."""
        keys = row_keys(codes)
        fresh = {key: row for row, key in enumerate(keys) if key not in self._memo}
        if fresh:
            rows = codes[list(fresh.values())]
            columns = (self.latency.predict(rows), self.accuracy.predict(rows), self.accuracy.score(rows))
            self._memo.update(zip(fresh, zip(*(c.tolist() for c in columns), strict=True), strict=True))
            self.evaluations += len(rows)
        table = np.array([self._memo[key] for key in keys], np.float64).reshape(-1, 3)
        return Scores(table[:, 0], table[:, 1], table[:, 2])


def row_keys(codes: Codes) -> list[bytes]:
    """One hashable key per row of codes (n, V)."""
    rows = np.ascontiguousarray(codes, np.int64)
    return [row.tobytes() for row in rows]


def unique_rows(codes: Codes) -> Codes:
    """Codes (m, V) without repeated rows, first occurrences in order."""
    first = {key: row for row, key in reversed(list(enumerate(row_keys(codes))))}
    return codes[sorted(first.values())]


class Neighbours(NamedTuple):
    """All single modifications of n codes: `codes` (m, V) canonical, `parent` (m,), `variable` (m,)."""

    codes: Codes
    parent: NDArray[np.int64]
    variable: NDArray[np.int64]


def neighbours(space: SearchSpace, codes: Codes, *, lower_only: bool = False) -> Neighbours:
    """All codes one modification away from rows (n, V), ordered by parent, variable, choice descending."""
    cardinalities = np.asarray(space.cardinalities, np.int64)
    variable = np.repeat(np.arange(len(cardinalities)), cardinalities)
    choice = np.concatenate([np.arange(k)[::-1] for k in cardinalities])
    current = codes[:, variable]
    wanted = choice < current if lower_only else choice != current
    parent, column = np.nonzero(wanted)
    changed = codes[parent]
    changed[np.arange(len(parent)), variable[column]] = choice[column]
    return Neighbours(space.canonical_codes(changed), parent, variable[column])

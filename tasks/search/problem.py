"""The problem of a search: a space of integer codes and its predictors. Each different SubNet is predicted once.

Codes are integer matrices (n, V): one row for each SubNet, one column for each variable. An entry is the index of a
choice; the last index is the variable's largest choice.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Codes, Values
from tasks.base.errors import UserError

MAX_LEVELS = 5  # of uniform codes


class SearchSpace(Protocol):
    """Codes of a space; `canonical_codes` maps equal SubNets to equal rows."""

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        """Number of choices per variable (V,)."""

    def canonical_codes(self, codes: Codes, /) -> Codes: ...

    def random_codes(self, n: int, rng: np.random.Generator, /) -> Codes: ...


class CostModel(Protocol):
    """Predicts latency [ms], energy [mJ], … (n,) of canonical codes (n, V)."""

    def predict(self, codes: Codes, /) -> Values: ...


class AccuracyModel(Protocol):
    """Predicts accuracy (n,), a fraction; `score` (n,), which is maximised, is accuracy with ties broken."""

    def predict(self, codes: Codes, /) -> Values: ...

    def score(self, codes: Codes, /) -> Values: ...


class Scores(NamedTuple):
    """Predictions for n codes, (n,) each; costs (n, K): latency [ms], then those of the problem's `others`."""

    costs: Values
    score: Values

    @property
    def latency_ms(self) -> Values:
        """The first cost."""
        return self.costs[:, 0]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Scores":
        """The scores of some rows."""
        return Scores(self.costs[rows], self.score[rows])

    def within(self, budgets: float | Values) -> NDArray[np.bool_]:
        """Whether each SubNet keeps all `budgets` (K,), or a budget of latency alone; (n,)."""
        kept: NDArray[np.bool_] = np.all(self.costs <= budgets, axis=1)
        return kept

    def excess(self, budgets: float | Values) -> Values:
        """The shares by which budgets are exceeded, added up (n,); 0 if all budgets are kept."""
        return np.maximum(self.costs / budgets - 1, 0.0).sum(axis=1)


@dataclass(slots=True)
class Problem:
    """A space with its predictors; every different code is predicted once and remembered.

    others: costs besides the latency. timed: number of costs that are latencies, each on one device; they come first. measured:
    the accuracy is slow, so it is requested only for SubNets within their budgets.
    """

    space: SearchSpace
    latency: CostModel
    accuracy: AccuracyModel
    others: tuple[CostModel, ...] = ()
    timed: int = 1
    measured: bool = False
    evaluations: int = 0
    _memo: dict[bytes, tuple[float, ...]] = field(default_factory=dict)
    _idle: dict[bytes, NDArray[np.bool_]] = field(default_factory=dict)

    def pace(self, scores: Scores) -> Values:
        """The number (n,) that is least for the fastest SubNet: the latency, or on several devices a sum of relative latencies.

        A relative latency is a share of the largest SubNet's latency on the device.
        """
        if self.timed == 1:
            return scores.latency_ms
        columns = zip(scores.costs.T[: self.timed], self.paces[: self.timed], strict=True)
        # Column by column, so that rounding does not depend on the number of rows.
        return np.sum([latency_ms * pace for latency_ms, pace in columns], axis=0)

    @property
    def paces(self) -> Values:
        """The weight of each cost (K,) in the pace."""
        counts = np.zeros(len(self.costs))
        counts[0] = 1.0
        if self.timed > 1:
            largest = self.evaluate(self.space.canonical_codes(self.largest[None]))
            counts[: self.timed] = 1 / largest.costs[0, : self.timed]
        return counts

    @property
    def unlimited(self) -> Values:
        """Budgets (K,) that every SubNet keeps."""
        return np.full(len(self.costs), np.inf)

    @property
    def costs(self) -> tuple[CostModel, ...]:
        """The latency, then the other costs."""
        return self.latency, *self.others

    @property
    def largest(self) -> Codes:
        """Code (V,) of the largest SubNet."""
        return np.asarray(self.space.cardinalities, np.int64) - 1

    def evaluate(self, codes: Codes) -> Scores:
        """Scores of canonical codes (n, V); only codes that were not seen before reach the predictors."""
        keys = row_keys(codes)
        fresh = {key: row for row, key in enumerate(keys) if key not in self._memo}
        if fresh:
            rows = codes[list(fresh.values())]
            table = np.column_stack(self.predict(rows))
            self._memo.update(zip(fresh, map(tuple, table.tolist()), strict=True))
        table = np.array([self._memo[key] for key in keys], np.float64).reshape(len(keys), len(self.costs) + 1)
        return Scores(table[:, :-1], table[:, -1])

    def within(self, codes: Codes, budgets: float | Values) -> NDArray[np.bool_]:
        """Whether each of canonical codes (n, V) keeps all budgets (K,), or a budget of latency alone; (n,)."""
        if not self.measured:
            return self.evaluate(codes).within(budgets)
        kept: NDArray[np.bool_] = np.all(self.predict_costs(codes) <= budgets, axis=1)
        return kept

    def predict(self, codes: Codes) -> Scores:
        """Scores of canonical codes (n, V), which are not remembered. UserError if a predictor gives NaN."""
        self.evaluations += len(codes)
        return Scores(self.predict_costs(codes), self._numbers(self.accuracy, self.accuracy.score(codes)))

    def predict_costs(self, codes: Codes) -> Values:
        """Only the costs (n, K) of canonical codes (n, V), neither remembered nor counted. UserError as `predict`."""
        return np.column_stack([self._numbers(cost, cost.predict(codes)) for cost in self.costs])

    def without_effect(self, codes: Codes) -> NDArray[np.bool_]:
        """Whether each variable of canonical codes (n, V) has no effect, e.g. in skipped blocks; (n, V)."""
        keys = row_keys(codes)
        fresh = {key: row for row, key in enumerate(keys) if key not in self._idle}
        if fresh:
            rows = codes[list(fresh.values())]
            number, variables = rows.shape
            repeated = np.repeat(rows, variables, axis=0)
            changed = repeated.copy()
            changed[np.arange(len(changed)), np.tile(np.arange(variables), number)] = 0
            same = (self.space.canonical_codes(changed) == repeated).all(axis=1)
            self._idle.update(zip(fresh, same.reshape(rows.shape), strict=True))
        return np.array([self._idle[key] for key in keys], bool).reshape(codes.shape)

    @staticmethod
    def _numbers(model: object, values: Values) -> Values:
        wrong = int(np.isnan(values).sum())
        if wrong:
            raise UserError(
                f"predictor {type(model).__name__}",
                f"gives no number (NaN) for {wrong} of {len(values)} SubNets",
                next_step="run the predict stage again: autotailor predict …",
            )
        return values


def row_keys(codes: Codes) -> list[bytes]:
    """One hashable key per row of codes (n, V)."""
    content, width = np.ascontiguousarray(codes, np.int16).tobytes(), max(1, 2 * codes.shape[1])
    return [content[row * width : (row + 1) * width] for row in range(len(codes))]


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


def uniform_codes(space: SearchSpace, scaled: NDArray[np.bool_]) -> Codes:
    """The baseline without a search: distinct codes (n, V), largest first, whose `scaled` (V,) variables share a level.

    Level 1 is every variable's largest choice, level 0 its smallest; the others stay at their largest. The number of levels is
    that of the scaled variable with most choices, at most 5.
    """
    cardinalities = np.asarray(space.cardinalities, np.int64)
    levels = np.linspace(1, 0, min(MAX_LEVELS, int(np.max(cardinalities[scaled], initial=1))))
    codes = np.rint(levels[:, None] * (cardinalities - 1)).astype(np.int64)
    return unique_rows(space.canonical_codes(np.where(scaled, codes, cardinalities - 1)))

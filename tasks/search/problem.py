"""The problem of a search: a space of integer codes, and its predictors, also as sums of tables for exact search.

Codes are integer matrices (n, V): one row for each SubNet, one column for each variable. An entry is the index of a
choice; the last index is the variable's largest choice. Each different SubNet is predicted once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import FLOAT_BYTES
from profiling_agents.messages import MIB
from solvers.chain import Chain
from solvers.tables import Codes, Derived, NotANumber, Table, TooEntangled, Values
from tailor_ir import Space
from tailor_ir.memory.terms import moments
from tasks.base.errors import UserError
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.resources import MJ, EnergyPredictor, MemoryPredictor, MemoryWithin
from tasks.prediction.sums import Sums

MAX_LEVELS = 5  # of uniform codes

T = TypeVar("T")


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
    _memo: dict[bytes, list[float]] = field(default_factory=dict)
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
        rows = _remembered(self._memo, codes, lambda fresh: np.column_stack(self.predict(fresh)).tolist())
        table = np.array(rows, np.float64).reshape(len(codes), len(self.costs) + 1)
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

        def idle(fresh: Codes) -> NDArray[np.bool_]:
            number, variables = fresh.shape
            repeated = np.repeat(fresh, variables, axis=0)
            changed = repeated.copy()
            changed[np.arange(len(changed)), np.tile(np.arange(variables), number)] = 0
            return (self.space.canonical_codes(changed) == repeated).all(axis=1).reshape(fresh.shape)

        return np.array(_remembered(self._idle, codes, idle), bool).reshape(codes.shape)

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


def _remembered(memo: dict[bytes, T], codes: Codes, found: Callable[[Codes], Iterable[T]]) -> list[T]:
    """A value for each row of codes (n, V), from the memo. found: computes the values of new rows."""
    keys = row_keys(codes)
    fresh = {key: row for row, key in enumerate(keys) if key not in memo}
    if fresh:
        memo.update(zip(fresh, found(codes[list(fresh.values())]), strict=True))
    return [memo[key] for key in keys]


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


FORBIDDEN_MS = 1e12
"""Latency of operators that were not measured: no budget allows them."""
Bounds = tuple[tuple[int, float | None], ...]  # rows, and the upper bound of each; None: the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """A cost described by `rows`, which are sums of tables.

    The cost keeps a budget if every row keeps its bound in one of `cases`. exact: and only then. Otherwise the rows bound the
    cost from below, and complete SubNets must be predicted.
    """

    rows: tuple[tuple[Table, ...], ...]
    cases: tuple[Bounds, ...] = (((0, None),),)
    exact: bool = True


def additive(cost: CostModel) -> Additive | None:
    """A cost as sums of tables; None if it is no such sum."""
    match cost:
        case LatencyPredictor():
            return Additive(rows=(tuple(cost_tables(cost)),))
        case EnergyPredictor():
            return _energy(cost)
        case MemoryPredictor():
            return _memory(cost)
        case MemoryWithin():
            return _memory(cost.memory)
        case Sums():
            return Additive(rows=(cost.tables,))
    return None


def _scaled(tables: Sequence[Table], factor: float) -> tuple[Table, ...]:
    return tuple(table.scaled(factor) for table in tables)


def _energy(energy: EnergyPredictor) -> Additive:
    """Energy in two cases: weights come from the last cache if all fit into it, else from memory, which costs more."""
    bytes_ = _scaled(energy.weights.tables, FLOAT_BYTES)
    cache = energy.settings.cache_bytes[-1]
    near, far = (
        _calibrated(energy, (*energy.operators.tables, *_scaled(bytes_, pj_per_byte * MJ)))
        for pj_per_byte in (energy.settings.cache_pj_per_byte[-1], energy.settings.dram_pj_per_byte)
    )
    if sum(float(np.max(values)) for _, values in bytes_) <= cache:
        return Additive(rows=(near,))
    if sum(float(np.min(values)) for _, values in bytes_) > cache:
        return Additive(rows=(far,))
    if energy.settings.dram_pj_per_byte < energy.settings.cache_pj_per_byte[-1]:
        return Additive(rows=(far,), exact=False)
    return Additive(rows=(far, near, bytes_), cases=(((0, None),), ((1, None), (2, float(cache)))))


def _calibrated(energy: EnergyPredictor, model: Sequence[Table]) -> tuple[Table, ...]:
    if energy.calibration is None:
        return tuple(model)
    calibration, latency = energy.calibration
    offset = Table.constant(calibration.offset_mj)
    return offset, *_scaled(model, calibration.factor), *_scaled(cost_tables(latency), calibration.mj_per_ms)


def _memory(memory: MemoryPredictor) -> Additive:
    """For every moment, the parameters plus a lower bound of the live values."""
    parameters = _scaled(memory.parameters.tables, memory.parameter_bytes / MIB)
    known, terms = len(memory.parameters.all_cardinalities), memory.activations.terms
    cardinalities = (*memory.parameters.cardinalities, *[2] * len(terms.derived))
    found = ([_least(table, known) for table in tables] for tables in moments(terms, cardinalities))
    rows = [(*parameters, *_scaled(tables, 1 / MIB)) for tables in found]
    return Additive(rows=tuple(rows), cases=(tuple((row, None) for row in range(len(rows))),), exact=False)


def _least(table: Table, columns: int) -> Table:
    """The minimum of a table over all axes of columns from number `columns` on."""
    axes = tuple(axis for axis, column in enumerate(table.columns) if column >= columns)
    return Table(tuple(column for column in table.columns if column < columns), table.values.min(axis=axes))


def gain_tables(space: Space, accuracy: AccuracyPredictor) -> list[Table]:
    """The score of any code, minus the score of the largest SubNet."""
    return canonical_tables(space, accuracy.tables)


def cost_tables(latency: LatencyPredictor) -> list[Table]:
    """The latency of any code [ms]."""
    offset = Table.constant(latency.correction.offset_ms)
    forbidden = [Table(columns, np.where(values > 0, FORBIDDEN_MS, 0.0)) for columns, values in latency.unknown.tables]
    return [offset, *latency.sums.tables, *(table for table in forbidden if table[1].any())]


def chain_of(space: Space, accuracy: AccuracyPredictor, *costs: Sequence[Table]) -> Chain:
    """A chain of the score and the costs of a space. UserError as in `chain_of_tables`."""
    return chain_of_tables(space.cardinalities.tolist(), gain_tables(space, accuracy), costs, space.derived)


def chain_of_tables(
    cardinalities: Sequence[int],
    gain: Sequence[Table],
    costs: Sequence[Sequence[Table]],
    derived: Sequence[Derived] = (),
) -> Chain:
    """A chain of tables. UserError if an entry is NaN, or if too many variables share tables."""
    try:
        return Chain(cardinalities, gain, costs, derived)
    except NotANumber as error:
        raise UserError(
            "search.method=exact",
            "a predictor gives no number (NaN) for some SubNets",
            next_step="run the predict stage again: autotailor predict …",
        ) from error
    except TooEntangled as error:
        raise UserError(
            "search.method=exact",
            f"the predictors tie too many variables together (tables of {error.entries:.1e} numbers)",
            next_step="use search.method=genetic",
        ) from error


def canonical_tables(space: Space, tables: Sequence[Table]) -> list[Table]:
    """Tables over any codes. Their sum is the sum of `tables` at the canonical code of the same SubNet.

    A canonical code may have another choice of a variable, which depends on the variables of its rule.
    """
    cardinalities = space.all_cardinalities
    scopes = {column: {column} for column in range(len(cardinalities))}
    for rule in space.rules:
        scopes[rule.variable] |= set(rule.scope)
    for scope in scopes.values():
        for column in tuple(scope):
            scope |= scopes[column]
    found = []
    for columns, values in tables:
        over = tuple(sorted(set().union(*(scopes[column] for column in columns))))
        shape = tuple(int(cardinalities[column]) for column in over)
        codes = np.tile(cardinalities - 1, (prod(shape), 1))
        codes[:, over] = list(product(*map(range, shape)))
        canonical = space.canonical_codes.extended(codes)
        found.append(Table(over, values[tuple(canonical[:, columns].T)].reshape(shape)))
    return found

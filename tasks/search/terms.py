"""Predictors as sums of tables over choice indices, for the exact search."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from profiling_agents.messages import MIB
from solvers.chain import Chain
from solvers.errors import NotANumber, TooEntangled
from solvers.tables import Derived, Table
from tailor_ir import Space
from tailor_ir.memory.moments import moments
from tasks.base.errors import UserError
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.energy import MJ, EnergyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.memory import MemoryPredictor, MemoryWithin
from tasks.prediction.settings import FLOAT_BYTES
from tasks.prediction.sums import Sums
from tasks.search.problem import CostModel

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
    groups: Sequence[Sequence[int]] = (),
) -> Chain:
    """A chain of tables. UserError if an entry is NaN, or if too many variables share tables."""
    try:
        return Chain(cardinalities, gain, costs, derived, groups)
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

"""Predictors as sums of terms over choice indices, for the exact search."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tailor_ir import Space
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.energy import FLOAT_BYTES, MJ, EnergyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.predict.memory import MIB, MemoryPredictor
from tasks.predict.sums import Sums
from tasks.search.chain import Chain, Table
from tasks.search.moments import moments
from tasks.search.problem import CostModel

FORBIDDEN_MS = 1e12
"""Of operators without a latency: no budget allows them."""
Bounds = tuple[tuple[int, float | None], ...]  # rows, and the most of each; None: the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Additive:
    """A cost by `rows`, which are sums of tables: it keeps a budget when, in one of `cases`, every row keeps its bound.

    exact: also only then. Otherwise the rows bound it from below, and whole SubNets have to be asked.
    """

    rows: tuple[tuple[Table, ...], ...]
    cases: tuple[Bounds, ...] = (((0, None),),)
    exact: bool = True


def additive(cost: CostModel) -> Additive | None:
    """A cost as sums; None when it is none."""
    match cost:
        case LatencyPredictor():
            return Additive(rows=(tuple(cost_tables(cost)),))
        case EnergyPredictor():
            return _energy(cost)
        case MemoryPredictor():
            return _memory(cost)
        case Sums():
            return Additive(rows=(cost.tables,))
    return None


def _scaled(tables: Sequence[Table], factor: float) -> tuple[Table, ...]:
    return tuple((columns, factor * np.asarray(values)) for columns, values in tables)


def _energy(energy: EnergyPredictor) -> Additive:
    """Weights come from the last cache where all fit into it, else from memory, which costs more: two cases."""
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
    offset: Table = ((), np.asarray(calibration.offset_mj))
    return offset, *_scaled(model, calibration.factor), *_scaled(cost_tables(latency), calibration.mj_per_ms)


def _memory(memory: MemoryPredictor) -> Additive:
    """At every moment the parameters and what is alive then at least."""
    parameters = _scaled(memory.parameters.tables, FLOAT_BYTES / MIB)
    cardinalities = memory.parameters.cardinalities
    rows = [(*parameters, *_scaled(tables, 1 / MIB)) for tables in moments(memory.terms, cardinalities)]
    return Additive(rows=tuple(rows), cases=(tuple((row, None) for row in range(len(rows))),), exact=False)


def gain_tables(space: Space, accuracy: AccuracyPredictor) -> list[Table]:
    """The score of any code, less the largest SubNet's."""
    return canonical_tables(space, accuracy.tables)


def cost_tables(latency: LatencyPredictor) -> list[Table]:
    """The latency of any code [ms]."""
    offset: Table = ((), np.asarray(latency.correction.offset_ms))
    forbidden = [(columns, np.where(values > 0, FORBIDDEN_MS, 0.0)) for columns, values in latency.unknown.tables]
    return [offset, *latency.sums.tables, *(table for table in forbidden if table[1].any())]


def chain_of(space: Space, accuracy: AccuracyPredictor, *costs: Sequence[Table]) -> Chain:
    """Gain and costs of a space."""
    return Chain(space.cardinalities.tolist(), gain_tables(space, accuracy), costs)


def canonical_tables(space: Space, tables: Sequence[Table]) -> list[Table]:
    """Tables over any codes whose sum is that of `tables` over the canonical code of the same SubNet.

    What a canonical code has in place of a variable's choice depends on the width and the depth of its stage.
    """
    scopes = {variable: {variable} for variable in range(len(space.variables))}
    for expansion in space.expansions:
        deciding = {expansion.reference.variable, expansion.depth} - {None}
        scopes[expansion.variable] |= {column for column in deciding if column is not None}
    for scope in scopes.values():
        for column in tuple(scope):
            scope |= scopes[column]
    found = []
    for columns, values in tables:
        over = tuple(sorted(set().union(*(scopes[column] for column in columns))))
        shape = tuple(int(space.cardinalities[column]) for column in over)
        codes = np.tile(space.cardinalities - 1, (prod(shape), 1))
        codes[:, over] = list(product(*map(range, shape)))
        canonical = space.canonical_codes(codes)
        found.append((over, values[tuple(canonical[:, columns].T)].reshape(shape)))
    return found

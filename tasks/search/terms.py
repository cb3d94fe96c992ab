"""Predictors as sums of terms over choice indices, for the exact search."""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Protocol

import numpy as np

from tailor_ir import Space
from tasks.predict.accuracy import AccuracyPredictor
from tasks.predict.latency import LatencyPredictor
from tasks.search.chain import Chain, Table

FORBIDDEN_MS = 1e12
"""Of operators without a latency: no budget allows them."""


class Summed(Protocol):
    """A cost that is a sum of tables."""

    @property
    def tables(self) -> tuple[Table, ...]: ...


def gain_tables(space: Space, accuracy: AccuracyPredictor) -> list[Table]:
    """The score of any code, less the largest SubNet's."""
    return canonical_tables(space, accuracy.tables)


def cost_tables(latency: LatencyPredictor) -> list[Table]:
    """The latency of any code [ms]."""
    offset: Table = ((), np.asarray(latency.correction.offset_ms))
    forbidden = [(columns, np.where(values > 0, FORBIDDEN_MS, 0.0)) for columns, values in latency.unknown.tables]
    return [offset, *latency.sums.tables, *(table for table in forbidden if table[1].any())]


def chain_of(space: Space, accuracy: AccuracyPredictor, latency: LatencyPredictor, *others: Summed) -> Chain:
    """Gain and costs of a space: the latency first, then `others`."""
    costs = [cost_tables(latency), *(list(other.tables) for other in others)]
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

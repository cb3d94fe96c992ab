"""Sums of random tables over few variables, small enough to list all codes."""

from itertools import product

import numpy as np

from solvers.chain import Chain
from solvers.tables import Table


def random_tables(rng: np.random.Generator, cardinalities: list[int], *, positive: bool) -> list[Table]:
    """Terms over neighbouring variables, over the first one and another, and over one variable each."""
    count = len(cardinalities)
    scopes = [(v,) for v in range(count)] + [(v, v + 1) for v in range(count - 1)] + [(0, v) for v in range(2, count)]
    scopes += [(v + 2, v) for v in range(count - 2) if rng.random() < 0.3]
    chosen = [scope for scope in scopes if rng.random() < 0.7] or [(0,)]
    tables: list[Table] = []
    for scope in chosen:
        shape = [cardinalities[column] for column in scope]
        tables.append(Table(scope, rng.exponential(size=shape) if positive else rng.normal(size=shape)))
    return tables


def values_at(tables: list[Table], codes: np.ndarray) -> np.ndarray:
    """The sum of the tables at each code (n, V)."""
    return sum((values[tuple(codes[:, list(columns)].T)] for columns, values in tables), np.zeros(len(codes)))


def random_problem(seed: int, constraints: int) -> tuple[Chain, np.ndarray, np.ndarray, np.ndarray]:
    """The chain, all codes, and their gains and costs."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 5, size=int(rng.integers(1, 8))).tolist()
    gain = random_tables(rng, cardinalities, positive=False)
    costs = [random_tables(rng, cardinalities, positive=True) for _ in range(constraints)]
    codes = np.array(list(product(*map(range, cardinalities))))
    chain = Chain(cardinalities, gain, costs)
    return chain, codes, values_at(gain, codes), np.stack([values_at(tables, codes) for tables in costs])

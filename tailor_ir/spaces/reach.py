"""Codes with given values in some columns, including derived ones; not all combinations of values are reachable."""

from collections.abc import Iterator

import numpy as np

from solvers.chain import Chain
from solvers.tables import Table
from tailor_ir.spaces.presence import Variables
from tailor_ir.spaces.space import Space

RANDOM_CODES = 512


class Reach:
    """Finds codes of one space: first among those near the largest SubNet and random ones, then among all."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._count = len(space.variables)
        self._codes = np.unique(np.concatenate([*self._near(), self._random()]), axis=0)[::-1]  # the largest one first
        self._extended = space.extended(self._codes)
        self._known: dict[tuple[Variables, bytes], np.ndarray | None] = {}

    def deciders(self, columns: Variables) -> Variables:
        """The given columns that are derived, or from which derived columns among them follow."""
        found, waiting = set[int](), [column for column in columns if column >= self._count]
        while waiting:
            column = waiting.pop()
            if column not in found:
                found.add(column)
                if column >= self._count:
                    waiting += self._space.derived[column - self._count].columns
        return tuple(column for column in columns if column in found)

    def code(self, columns: Variables, values: np.ndarray) -> np.ndarray | None:
        """A code (V,) with these values (K,) in columns (K,); None if no SubNet has them."""
        key = columns, values.tobytes()
        if key not in self._known:
            same = np.flatnonzero((self._extended[:, list(columns)] == values).all(axis=1))
            self._known[key] = self._codes[same[0]] if len(same) else self._sought(columns, values)
        return self._known[key]

    def _near(self) -> Iterator[np.ndarray]:
        """The largest SubNet, and the SubNets that differ from it in one variable."""
        largest = self._space.cardinalities - 1
        yield largest[None]
        for column, count in enumerate(self._space.cardinalities):
            codes = np.tile(largest, (count, 1))
            codes[:, column] = np.arange(count)
            yield codes

    def _random(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        return rng.integers(0, self._space.cardinalities, size=(RANDOM_CODES, self._count))

    def _sought(self, columns: Variables, values: np.ndarray) -> np.ndarray | None:
        """A code that matches all of the values, found by maximising the number of matches; None if none does."""
        cardinalities = self._space.cardinalities.tolist()
        sizes = self._space.all_cardinalities
        gain = [
            Table((column,), np.where(np.arange(sizes[column]) == value, 1.0, 0.0))
            for column, value in zip(columns, values.tolist(), strict=True)
        ]
        code = Chain(cardinalities, gain, (), self._space.derived).best(np.zeros(0))[0]
        has = self._space.extended(code[None])[0][list(columns)] == values
        return code if has.all() else None

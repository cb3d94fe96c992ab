"""Steps in an order in which they can run, and the values that they pass to each other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

INPUT = -1
"""The writer of the network's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentValue:
    """A value. writer: a step, or `INPUT`. readers: steps, ascending; the number of steps represents the network's output.

    bytes: size of the value when it is sent.
    """

    writer: int
    readers: tuple[int, ...]
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Steps 0 … `steps` - 1; a step only reads values of earlier steps. Every value has a reader."""

    steps: int
    values: tuple[SentValue, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            assert value.readers == tuple(sorted(set(value.readers))), value
            assert INPUT <= value.writer < value.readers[0] <= value.readers[-1] <= self.steps, value

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each step, and last for the network's output, positions of the values that are read."""
        found: list[list[int]] = [[] for _ in range(self.steps + 1)]
        for at, value in enumerate(self.values):
            for reader in value.readers:
                found[reader].append(at)
        return tuple(map(tuple, found))

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """For each step, positions of the values that it writes; the positions of the network's inputs come last."""
        found: list[list[int]] = [[] for _ in range(self.steps + 1)]
        for at, value in enumerate(self.values):
            found[value.writer].append(at)  # INPUT is -1, so it selects the last entry
        return tuple(map(tuple, found))

    @cached_property
    def crossing(self) -> NDArray[np.int64]:
        """Number of values (steps + 1,) that cross each cut; cut k has the first k steps on its left side."""
        return self._along_cuts([1] * len(self.values)).astype(np.int64)

    @cached_property
    def crossing_bytes(self) -> NDArray[np.float64]:
        """Bytes (steps + 1,) that cross each cut."""
        return self._along_cuts([value.bytes for value in self.values])

    def _along_cuts(self, sizes: list[int] | list[float]) -> NDArray[np.float64]:
        changes = np.zeros(self.steps + 2)
        for value, size in zip(self.values, sizes, strict=True):
            changes[value.writer + 1] += size
            changes[value.readers[-1] + 1] -= size
        return changes.cumsum()[: self.steps + 1]

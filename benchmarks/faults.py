"""Faults that begin and are mended at random while something is measured."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tests.support.threads import beside

LEAST_S, MOST_S = 0.05, 1.0
"""How long a fault is held."""
Act = Callable[[], object]


class Fault(NamedTuple):
    """How a fault begins, and how it is mended."""

    name: str
    begin: Act
    end: Act


@contextmanager
def failing(faults: Sequence[Fault], pause_s: float, seed: int) -> Iterator[Counter[str]]:
    """Faults one after another in a thread of their own, counted by name; the last one is mended where the block ends.

    pause_s: between faults, mean. Raises, at the end of the block, what failed where a fault began or was mended.
    """
    counts: Counter[str] = Counter()
    ended, rng = threading.Event(), random.Random(seed)

    def work() -> None:
        while not ended.wait(rng.uniform(0, 2 * pause_s)):
            fault = rng.choice(faults)
            fault.begin()
            ended.wait(rng.uniform(LEAST_S, MOST_S))
            fault.end()
            counts[fault.name] += 1

    with beside(work, over=ended):
        yield counts

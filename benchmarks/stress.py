"""Real stress of this machine: processes at low priority that follow a pattern over time.

A pattern says for each moment how many processes work, by a seed; `CPU` processes compute, `BANDWIDTH` processes copy
arrays that no cache holds.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError

NICE = 10
CHECK_S = 0.01
ARRAY_BYTES = 64 << 20
PROCESSES = 3

Work = Callable[[], None]
Pattern = Callable[[np.random.Generator], Iterator[tuple[float, int]]]
"""Yields (seconds, processes that work) from the beginning on, without end."""


def steps(rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """12 s at each of the numbers of processes in turn."""
    while True:
        for level in (0, 1, 3, 1, 2, 0, 3):
            yield 12.0, level


def random_levels(rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """A random number of processes for 2 to 8 s."""
    while True:
        yield float(rng.uniform(2, 8)), int(rng.integers(0, PROCESSES + 1))


def user(rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """Like someone who uses an application: pauses of about 8 s, then about 6 s of short bursts."""
    while True:
        yield float(rng.exponential(8)) + 1, 0
        ends = float(rng.exponential(6)) + 1
        while ends > 0:
            burst, pause = float(rng.uniform(0.5, 2)), float(rng.uniform(0.1, 0.6))
            yield burst, int(rng.integers(1, PROCESSES + 1))
            yield pause, 0
            ends -= burst + pause


def periodic(rng: np.random.Generator) -> Iterator[tuple[float, int]]:
    """All processes for 5 s, then none for 5 s."""
    while True:
        yield 5.0, PROCESSES
        yield 5.0, 0


def compute() -> None:
    """A few milliseconds of arithmetic."""
    sum(range(100_000))


class Copy:
    """Copies of an array that no cache holds."""

    def __init__(self) -> None:
        self._from = np.ones(ARRAY_BYTES // 8)
        self._to = np.empty_like(self._from)

    def __call__(self) -> None:
        np.copyto(self._to, self._from)


CPU, BANDWIDTH = "CPU", "bandwidth"
PATTERNS: dict[str, tuple[str, Pattern]] = {
    "CPU in steps": (CPU, steps),
    "CPU at random": (CPU, random_levels),
    "CPU like a user": (CPU, user),
    "CPU periodic": (CPU, periodic),
    "bandwidth at random": (BANDWIDTH, random_levels),
}


@contextmanager
def stress(kind: str, pattern: Pattern, seed: int) -> Iterator[None]:
    """The pattern's processes, from the begin of the block to its end."""
    if kind not in (CPU, BANDWIDTH):
        raise AdaptiveError("stress", f"kind '{kind}'", allowed=f"{CPU}, {BANDWIDTH}")
    context = multiprocessing.get_context("spawn")
    level: Synchronized[int] = context.Value("i", 0)
    workers = [context.Process(target=_work, args=(kind, index, level), daemon=True) for index in range(PROCESSES)]
    driver = context.Process(target=_drive, args=(pattern, seed, level), daemon=True)
    for process in (*workers, driver):
        process.start()
    try:
        yield
    finally:
        for process in (driver, *workers):
            process.terminate()
            process.join()


def _work(kind: str, index: int, level: "Synchronized[int]") -> None:
    os.nice(max(0, NICE - os.nice(0)))
    work: Work = compute if kind == CPU else Copy()
    while True:
        if level.value > index:
            work()
        else:
            time.sleep(CHECK_S)


def _drive(pattern: Pattern, seed: int, level: "Synchronized[int]") -> None:
    for seconds, processes in pattern(np.random.default_rng(seed)):
        level.value = processes
        time.sleep(seconds)

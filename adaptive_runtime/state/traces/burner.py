"""A process that makes load: it computes, streams through memory or fills the caches for a share of time, or holds memory.

    python -m adaptive_runtime.state.traces.burner cpu|bandwidth|cache|memory

Lines of standard input are shares from 0 to 1; the latest one is valid. The process ends when its input ends, which includes
the death of its parent.
"""

import contextlib
import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.numbers import clipped_share

PERIOD_S = 0.02
IDLE_S = 1.0
STREAM_MIB = 64
PIECE = 1 << 18
"""Values of one copy, 2 MiB: fast compared to the period."""
LINE = 8
"""Values of a cache line."""
PAGE = 512
"""Values of a page of memory."""
UNKNOWN_CACHE_MIB, MOST_CACHE_MIB = 32, 512
HELD_MIB = 64
"""Size of one held piece of memory: large enough for the C library to return it to the system at once."""
LEAST_LEFT = 0.2
"""Share of the total memory that stays available, for any requested share and any number of processes."""
HOLD_S = 0.1
KILLED_FIRST = "1000"


def computing() -> Callable[[], object]:
    """Arithmetic that needs no memory."""
    return lambda: sum(range(1000))


def streaming() -> Callable[[], object]:
    """Copies through memory too large for any cache."""
    source = values(STREAM_MIB)
    target = np.zeros_like(source)
    pieces = itertools.cycle(range(0, len(source), PIECE))

    def piece() -> None:
        start = next(pieces)
        np.copyto(target[start : start + PIECE], source[start : start + PIECE])

    return piece


def walking() -> Callable[[], object]:
    """A walk over the lines of memory as large as the last cache, which evicts the lines of other programs."""
    from profiling_agents.sensing.machine import available_cores, last_level_cache_bytes

    found = last_level_cache_bytes(available_cores()[0])
    working_set = values(UNKNOWN_CACHE_MIB if found is None else max(1, min(found >> 20, MOST_CACHE_MIB)))
    pieces = itertools.cycle(range(0, len(working_set), PIECE))

    def piece() -> None:
        start = next(pieces)
        lines = working_set[start : start + PIECE : LINE]
        lines += 1

    return piece


def values(mib: int) -> NDArray[np.float64]:
    """Memory of this size, written once: otherwise the system would not allocate it."""
    return np.ones(mib << 17)


class BurnedLoad(Protocol):
    """Makes load for a period by a share. Returns the idle time afterwards [s]."""

    def __call__(self, share: float) -> float: ...


class TimeShare:
    """Works for a share of each period."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def __call__(self, share: float) -> float:
        """Run one period."""
        start_s = time.monotonic()
        until_s = start_s + share * PERIOD_S
        while time.monotonic() < until_s:
            self._work()
        return start_s + PERIOD_S - time.monotonic() if share else IDLE_S


class HeldMemory:
    """Holds a share of the initially available memory, in pieces, and touches one piece in each call.

    It takes no piece that would leave less than `LEAST_LEFT` of the total memory, and frees pieces if others take that much;
    the limit of a control group counts as the total memory. SystemExit: the system does not report its memory.
    """

    def __init__(self, root: Path = Path("/"), piece_mib: int = HELD_MIB) -> None:
        from adaptive_runtime.state.sensing.sensors import MemorySensor

        self._sensor, self._piece_mib = MemorySensor(root), piece_mib
        self._pieces: list[NDArray[np.float64]] = []
        self._turn = 0
        total_mib = self._sensor.read()["memory_total_mib"]
        if total_mib is None:
            raise SystemExit("stress on memory: this system does not say how much memory is available")
        self._least_mib = LEAST_LEFT * total_mib
        self._began_mib = self._available_mib()

    @property
    def held_mib(self) -> int:
        """Memory that it holds [MiB]."""
        return len(self._pieces) * self._piece_mib

    def __call__(self, share: float) -> float:
        """Take or free a piece, until it holds the share."""
        wanted, spare_mib = int(share * self._began_mib / self._piece_mib), self._available_mib() - self._least_mib
        if len(self._pieces) > wanted or (self._pieces and spare_mib < 0):
            self._pieces.pop()
            return 0.0
        if len(self._pieces) < wanted and spare_mib >= self._piece_mib:
            self._pieces.append(values(self._piece_mib))
            return 0.0
        if self._pieces:
            self._turn = (self._turn + 1) % len(self._pieces)
            pages = self._pieces[self._turn][::PAGE]
            pages += 1
        return HOLD_S if self._pieces or wanted else IDLE_S

    def _available_mib(self) -> float:
        found: float = self._sensor.read()["memory_available_mib"] or 0.0
        return found


def holding() -> HeldMemory:
    """Held memory, in a process that the system kills first if memory runs out nevertheless."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    return HeldMemory()


LOADS: Mapping[str, Callable[[], BurnedLoad]] = {
    "cpu": lambda: TimeShare(computing()),
    "bandwidth": lambda: TimeShare(streaming()),
    "cache": lambda: TimeShare(walking()),
    "memory": holding,
}


class GivenShare:
    """The latest share from standard input."""

    def __init__(self) -> None:
        self.share, self._begun = 0.0, b""

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for a new share; False: the input has ended."""
        ready, _, _ = select.select([0], [], [], max(0.0, seconds))
        if not ready:
            return True
        read = os.read(0, 1 << 12)
        *lines, self._begun = (self._begun + read).split(b"\n")
        if lines:
            self.share = clipped_share(float(lines[-1]))
        return bool(read)


def main(kind: str) -> None:
    load, shares = LOADS[kind](), GivenShare()
    print("ready", flush=True)
    while shares.wait(load(shares.share)):
        pass


if __name__ == "__main__":
    main(sys.argv[1])

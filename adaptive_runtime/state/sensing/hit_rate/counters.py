"""Hardware counters of cache references and misses, by Linux' perf_event_open. Most virtual machines have none."""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence
from typing import Literal

from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.state.sensing.state import HitRateSource

SYSCALLS = {"x86_64": 298, "aarch64": 241}
HARDWARE, SOFTWARE = 0, 1
CACHE_REFERENCES, CACHE_MISSES, PAGE_FAULTS = 2, 3, 2
ATTRIBUTES_BYTES = 64
"""Size of the structure's first published version; every kernel reads it."""
FLAGS_INHERIT, FLAGS_NO_KERNEL = 1 << 1, (1 << 5) | (1 << 6)
FEWEST_REFERENCES = 1000


class PerfCounter:
    """One event, counted for the calling thread and threads that it starts later (cpu None), or for everything on one CPU.

    OSError if the processor or the system lacks the event or does not allow it.
    """

    def __init__(self, kind: int, event: int, cpu: int | None = None) -> None:
        number = SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
        if number is None:
            raise OSError("this system has no perf_event_open that is known here")
        flags = FLAGS_INHERIT | FLAGS_NO_KERNEL if cpu is None else 0
        attributes = struct.pack("=IIQQQQQIIQ", kind, ATTRIBUTES_BYTES, event, 0, 0, 0, flags, 0, 0, 0)
        library = ctypes.CDLL(None, use_errno=True)
        process = 0 if cpu is None else -1
        self._file: int = library.syscall(number, attributes, process, -1 if cpu is None else cpu, -1, 0)
        if self._file < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def read(self) -> int:
        """Number of events since counting began."""
        (count,) = struct.unpack("=Q", os.read(self._file, 8))
        return int(count)

    def close(self) -> None:
        """Stop counting."""
        os.close(self._file)


class CacheCounters:
    """Share of hits among references to the last cache since the previous reading, on some CPUs. OSError without counters."""

    name: HitRateSource = "counters"

    def __init__(self, cores: Sequence[int], scope: Literal["cores", "process"] = "cores") -> None:
        places = list(cores) if scope == "cores" else [None]
        self._counters: list[PerfCounter] = []
        try:
            for place in places:
                for event in (CACHE_REFERENCES, CACHE_MISSES):
                    self._counters.append(PerfCounter(HARDWARE, event, place))
        except OSError:
            self.close()
            raise
        self._before = self._counts()

    @classmethod
    def find(cls, cores: Sequence[int]) -> "CacheCounters | None":
        """Counters of whole CPUs if the system allows them, else of this process; None if there are none."""
        scopes: tuple[Literal["cores", "process"], ...] = ("cores", "process")
        for scope in scopes:
            try:
                return cls(cores, scope)
            except OSError:
                continue
        return None

    def read(self) -> float | None:
        """The hit rate; None after too few references."""
        before, self._before = self._before, self._counts()
        references, misses = (after - earlier for earlier, after in zip(before, self._before, strict=True))
        if references < FEWEST_REFERENCES:
            return None
        return clipped_share(1.0 - misses / references)

    def close(self) -> None:
        """Stop counting."""
        for counter in self._counters:
            counter.close()
        self._counters = []

    def _counts(self) -> tuple[int, int]:
        values = [counter.read() for counter in self._counters]
        return sum(values[::2]), sum(values[1::2])

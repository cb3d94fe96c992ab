"""The hit rate by a timed probe: the share of a buffer that is still cached after a pause, by the time to read it.

The probe reads one word of each cache line of a buffer, in random order, so that the processor cannot read ahead; pauses,
while other programs use the caches; and reads it again. Two times are measured once on the quiet device: with all lines
cached, and with none. The hit rate is (miss − now) / (miss − hit). AdaScale's eq. 5 has the same idea, but as printed it is
the quotient of the two times. CPU time is measured, so interruptions do not count.
"""

import os
import time
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.state.sensing.state import HitRateSource
from profiling_agents.messages import MIB, one_line
from profiling_agents.sensing.caches import CacheFlush, last_level_cache_bytes
from profiling_agents.sensing.machine import available_cores

LINE_BYTES = 64
CHUNK_LINES = 4096
MOST_MIB = 8.0
"""A larger last cache is shared by so many programs, or virtual machines, that a probe cannot afford to fill it."""
PAUSE_S = 0.01
CALIBRATION_ROUNDS = 4
CLEAR = 1.2
"""A read from memory must take at least this many times as long as one from the caches; else the probe is useless."""

Nanoseconds = Annotated[float, Field(gt=0)]


class ProbeCalibration(FileMessage):
    """Time to read one line on the quiet device: `hit_ns` from the caches, `miss_ns` from memory."""

    WHERE: ClassVar[str] = "calibration of the cache probe"
    NEXT_STEP: ClassVar[str] = "calibrate again on the quiet device"

    buffer_mib: Annotated[float, Field(gt=0)]
    hit_ns: Nanoseconds
    miss_ns: Nanoseconds

    @model_validator(mode="after")
    def _memory_is_slower(self) -> Self:
        if self.miss_ns < CLEAR * self.hit_ns:
            raise ValueError(
                f"memory at {self.miss_ns:.2f} ns a line, caches at {self.hit_ns:.2f} ns: too close to tell apart"
            )
        return self

    def hit_rate(self, now_ns: float) -> float:
        """Share of the lines that came from the caches, given the present time for one line."""
        return clipped_share((self.miss_ns - now_ns) / (self.miss_ns - self.hit_ns))


class CacheProbe:
    """Reads a buffer as large as the last cache, up to `MOST_MIB`, before and after a pause.

    slowdown: time of the last probe relative to the time from the caches.
    """

    name: HitRateSource = "probe"

    def __init__(self, calibration: ProbeCalibration, *, pause_s: float = PAUSE_S) -> None:
        self._calibration = calibration
        self._pause_s = pause_s
        self._reads = _Reads(calibration.buffer_mib)
        self.slowdown: float | None = None

    @classmethod
    def calibrated(cls, buffer_mib: float | None = None) -> "CacheProbe":
        """A probe whose two times are measured now, on a quiet device. AdaptiveError if they are indistinguishable."""
        return cls(calibrate(buffer_mib))

    def read(self) -> float | None:
        """The hit rate after the pause."""
        self._reads.line_ns()
        time.sleep(self._pause_s)
        now_ns = self._reads.line_ns()
        self.slowdown = now_ns / self._calibration.hit_ns
        return self._calibration.hit_rate(now_ns)


def calibrate(buffer_mib: float | None = None) -> ProbeCalibration:
    """Times of a line from the caches and from memory, measured now. AdaptiveError if they are indistinguishable.

    The fastest of several readings counts as undisturbed; from memory, their median. Takes a buffer of twice the last cache.
    """
    cores = available_cores()
    cache_bytes = last_level_cache_bytes(cores[0])
    if cache_bytes is None:
        raise AdaptiveError("cache probe", "this system does not say how large its caches are")
    size_mib = buffer_mib or min(MOST_MIB, cache_bytes / MIB)
    reads = _Reads(size_mib)
    flush = CacheFlush(cores[:1])
    hits_ns = [reads.line_ns() for _ in range(CALIBRATION_ROUNDS)]
    misses_ns = []
    for _ in range(CALIBRATION_ROUNDS):
        flush()
        misses_ns.append(reads.line_ns())
        hits_ns.append(reads.line_ns())
    try:
        return ProbeCalibration(buffer_mib=size_mib, hit_ns=min(hits_ns), miss_ns=float(np.median(misses_ns)))
    except ValidationError as error:
        raise AdaptiveError("cache probe", one_line(error), next_step="try on a quieter device") from error


class _Reads:
    """Reads one word of each line of a buffer, in an order that is drawn once."""

    def __init__(self, size_mib: float) -> None:
        lines = max(CHUNK_LINES, int(size_mib * MIB) // LINE_BYTES)
        words = LINE_BYTES // 8
        order = np.random.default_rng(os.getpid()).permutation(lines) * words
        self._buffer = np.zeros(lines * words, np.int64)
        self._chunks = np.array_split(order, max(1, lines // CHUNK_LINES))
        self._lines = lines

    def line_ns(self) -> float:
        """Time of one line [ns], as a mean over the buffer."""
        start_ns = time.thread_time_ns()
        for chunk in self._chunks:
            self._buffer.take(chunk, mode="clip")
        return max(1, time.thread_time_ns() - start_ns) / self._lines

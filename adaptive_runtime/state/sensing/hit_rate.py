"""The hit rate of the processor's caches: by hardware counters, else a timed probe, else a model learned from them.

Hardware counters of cache references and misses are read by Linux' perf_event_open. Most virtual machines have none.

The probe reads one word of each cache line of a buffer, in random order, so that the processor cannot read ahead;
pauses, while other programs use the caches; and reads it again. The hit rate is the share of the buffer that is still
cached. Two times are measured once on the quiet device: with all lines cached, and with none. The hit rate is (miss −
now) / (miss − hit). AdaScale's eq. 5 has the same idea, but as printed it is the quotient of the two times. CPU time is
measured, so interruptions do not count.

The model is a regression on the device's state, taught by counters or by a probe while they work. A device that cannot
afford a probe uses the file of a similar device.
"""

import ctypes
import logging
import os
import platform
import struct
import sys
import time
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from adaptive_runtime.base.numbers import Positive, RecursiveLeastSquares, clipped_share
from adaptive_runtime.state.sensing.state import HitRateSource, SensedState
from profiling_agents.messages import MIB, AgentError, Message, one_line
from profiling_agents.sensing.machine import CacheFlush, available_cores, last_level_cache_bytes

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


FEATURES = ("1", "cpu_use_others", "pressure_cpu", "memory_use", "runnable_per_cpu")
FEWEST = 30
MEMORY = 600.0
RIDGE = 0.1
ERROR_KEEPS = 0.95


class LearnedHitRateFile(Message):
    """Coefficients of the features, their number of samples, and their recent mean absolute error."""

    version: Literal[1] = 1
    features: tuple[str, ...]
    coefficients: tuple[float, ...]
    samples: Annotated[int, Field(ge=0)]
    error: Annotated[float, Field(ge=0)]


class LearnedHitRate:
    """Predicts the hit rate of a state after `FEWEST` lessons. error: mean absolute error of recent predictions."""

    name: HitRateSource = "learned"

    def __init__(self) -> None:
        self._model = RecursiveLeastSquares(1, len(FEATURES), memory=MEMORY, ridge=RIDGE)
        self.samples = 0
        self.error = 0.0

    def teach(self, state: SensedState, rate: float) -> None:
        """Learn from one measured rate."""
        (error,) = np.abs(self._model.learn(_features(state), np.array([rate])))
        keeps = min(ERROR_KEEPS, self.samples / (self.samples + 1))
        self.error = keeps * self.error + (1 - keeps) * float(error)
        self.samples += 1

    def estimate(self, state: SensedState) -> float | None:
        """The hit rate in this state; None before enough lessons."""
        if self.samples < FEWEST:
            return None
        return float(np.clip(self._model.predict(_features(state))[0], 0.0, 1.0))

    def to_json(self) -> str:
        """The file's text."""
        file = LearnedHitRateFile(
            features=FEATURES,
            coefficients=tuple(self._model.coefficients_TP[0].tolist()),
            samples=self.samples,
            error=self.error,
        )
        return file.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "learned hit rate") -> Self:
        """Parse a file's text. AdaptiveError in one line for another kind of file, or other features."""
        try:
            file = LearnedHitRateFile.model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(where, one_line(error), next_step="learn it again") from error
        if file.features != FEATURES or len(file.coefficients) != len(FEATURES):
            raise AdaptiveError(where, f"features {', '.join(file.features)}", allowed=", ".join(FEATURES))
        learned = cls()
        learned._model.coefficients_TP[0] = file.coefficients
        learned.samples, learned.error = file.samples, file.error
        return learned


def _features(state: SensedState) -> NDArray[np.float64]:
    """Features (1, P); unknown values count as 0, which is consistent on one device."""
    waiting = state.pressure_cpu.since_last if state.pressure_cpu else None
    runnable = (state.runnable or 0) / max(state.usable_cpus or 1.0, 1e-3)
    values = (1.0, state.cpu_use_others, waiting, state.memory_use, runnable / (1 + runnable))
    return np.array([[0.0 if value is None else value for value in values]])


LINE_BYTES = 64
CHUNK_LINES = 4096
MOST_MIB = 8.0
"""A larger last cache is shared by so many programs, or virtual machines, that a probe cannot afford to fill it."""
PAUSE_S = 0.01
CALIBRATION_ROUNDS = 4
CLEAR = 1.2
"""A read from memory must take at least this many times as long as one from the caches; else the probe is useless."""


class ProbeCalibration(FileMessage):
    """Time to read one line on the quiet device: `hit_ns` from the caches, `miss_ns` from memory."""

    WHERE: ClassVar[str] = "calibration of the cache probe"
    NEXT_STEP: ClassVar[str] = "calibrate again on the quiet device"

    buffer_mib: Annotated[float, Field(gt=0)]
    hit_ns: Positive
    miss_ns: Positive

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


logger = logging.getLogger("adaptive_runtime.state.sensing")


class HitRateStep(Protocol):
    """A source that measures. read: the hit rate now; None if it has none."""

    @property
    def name(self) -> HitRateSource: ...

    def read(self) -> float | None: ...


class HitRate:
    """Asks sources in order, and teaches `learned` with their measurements. A failing source is not asked again."""

    def __init__(self, steps: Sequence[HitRateStep], learned: LearnedHitRate | None = None) -> None:
        self._steps = list(steps)
        self.learned = learned or LearnedHitRate()

    @classmethod
    def of_device(cls, probe: CacheProbe | None = None, learned: LearnedHitRate | None = None) -> "HitRate":
        """The chain of this device. probe: used if there are no counters."""
        counters = CacheCounters.find(available_cores())
        return cls([step for step in (counters, probe) if step is not None], learned)

    @classmethod
    def calibrated(cls) -> "HitRate":
        """The chain of this device; without counters, with a probe that is calibrated now, on the quiet device.

        If calibration fails, the log gives the reason, and the rate stays unknown.
        """
        chain = cls.of_device()
        if chain._steps:
            return chain
        try:
            return cls([CacheProbe.calibrated()])
        except (AdaptiveError, AgentError) as error:
            logger.warning("hit rate: no counters, and %s; it stays unknown", error)
            return chain

    def estimate(self, state: SensedState) -> tuple[float, HitRateSource] | tuple[None, None]:
        """The hit rate and its source; None if no source has a value."""
        for step in list(self._steps):
            try:
                rate = step.read()
            except OSError as error:
                logger.warning("hit rate by %s: %s; no longer asked", step.name, error)
                self._steps.remove(step)
                continue
            if rate is not None:
                self.learned.teach(state, rate)
                return rate, step.name
        rate = self.learned.estimate(state)
        return (None, None) if rate is None else (rate, self.learned.name)

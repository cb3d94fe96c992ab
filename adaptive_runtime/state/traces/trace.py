"""Traces: pressure on a device, the resulting slow-down over time, and arrivals of requests.

Traces are recorded, generated, or read from files. Generated load comes in steps, at random, like a user's, or in
bursts; requests come at regular or random times. A recording takes samples of the device's state, and the arrival times
of requests.

Legend: T times, C load classes, R requests.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from adaptive_runtime.base.arrays import Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from adaptive_runtime.base.numbers import NotNegative, Share, clipped_share
from adaptive_runtime.state.sensing import SensedState


class RecordedTrace(FileMessage):
    """Files of traces of any kind."""

    WHERE: ClassVar[str] = "trace"
    NEXT_STEP: ClassVar[str] = "record or draw the trace again"
    INDENT: ClassVar[int | None] = None

    def write(self, file: Path) -> None:
        """Write the file, completely or not at all."""
        beside = file.with_name(file.name + ".part")
        beside.write_text(self.to_json(), encoding="utf-8")
        beside.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file. AdaptiveError in one line: damage, or another kind of file."""
        return cls.from_file(file)


class LoadTrace(RecordedTrace):
    """Piecewise constant pressure of other programs as shares (T,), and slow-down by class (C, T).

    cpu, bandwidth, cache: share of the time in which they compute, stream through memory, walk through the last cache. memory:
    share that they hold of the memory that is available without them. cache and memory may be empty: no pressure. times_s: from
    0, rising. slow_down: latency over latency without load; empty: unknown. arrivals_s: of requests, rising, before the end.
    seed: of a generated trace; None: recorded.
    """

    version: Literal[1] = 1
    origin: str
    seed: int | None = None
    duration_s: Annotated[float, Field(gt=0)]
    times_s: Annotated[tuple[NotNegative, ...], Field(min_length=1)]
    cpu: tuple[Share, ...]
    bandwidth: tuple[Share, ...]
    cache: tuple[Share, ...] = ()
    memory: tuple[Share, ...] = ()
    slow_down: tuple[tuple[Annotated[float, Field(gt=0)], ...], ...]
    arrivals_s: tuple[NotNegative, ...] = ()

    @model_validator(mode="after")
    def _times_rise_and_have_values(self) -> Self:
        if self.times_s[0] != 0 or (np.diff(self.times_s) <= 0).any():
            raise ValueError("times_s do not rise from 0")
        if (np.diff(self.arrivals_s) < 0).any():
            raise ValueError("arrivals_s do not rise")
        if max((self.times_s[-1], *self.arrivals_s[-1:])) >= self.duration_s:
            raise ValueError(f"a time is not before the end, {self.duration_s:g} s")
        for values in (self.cpu, self.bandwidth, self.cache or self.cpu, self.memory or self.cpu, *self.slow_down):
            if len(values) != len(self.times_s):
                raise ValueError(f"{len(values)} values for {len(self.times_s)} times")
        return self

    def pressure(self, place: int) -> dict[str, float]:
        """The pressure of each kind from the time at this index on."""
        columns = {"cpu": self.cpu, "bandwidth": self.bandwidth, "cache": self.cache, "memory": self.memory}
        return {kind: values[place] for kind, values in columns.items() if values}

    @property
    def slow_down_CT(self) -> NDArray[np.float64]:
        return np.array(self.slow_down)

    @property
    def arrivals_s_R(self) -> NDArray[np.float64]:
        return np.array(self.arrivals_s)

    def at(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Index of the valid entry for each of some times."""
        return np.searchsorted(self.times_s, times_s, side="right") - 1


Pattern = Literal["steps", "random", "user", "bursts"]
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
STEP_S = 10.0
RECALL_S = 5.0
"""Time in which a random load forgets its state."""


class PressureResponse(NamedTuple):
    """Slow-down of a load class: 1 + cpu · pressure on the CPU + bandwidth · pressure on memory bandwidth."""

    cpu: float
    bandwidth: float


def steps(times_s: Values, rng: np.random.Generator) -> Values:
    """Levels that hold for ten seconds each and then jump."""
    holds = (times_s / STEP_S).astype(int)
    return rng.choice(LEVELS, holds.max() + 1)[holds]


def random(times_s: Values, rng: np.random.Generator) -> Values:
    """A load that drifts: an autoregressive walk around one half, folded into 0 to 1."""
    kept = np.exp(-np.diff(times_s, prepend=times_s[0]) / RECALL_S)
    noise = rng.normal(size=len(times_s))
    level, walk = 0.0, np.empty(len(times_s))
    for place, share in enumerate(kept):
        level = share * level + np.sqrt(1 - share * share) * noise[place]
        walk[place] = level
    folded: Values = np.abs((0.5 + 0.35 * walk) % 2)
    return np.minimum(folded, 2 - folded)


def user(times_s: Values, rng: np.random.Generator) -> Values:
    """Pauses (15 s on average) alternate with a light or heavy program (20 s on average) whose load flickers."""
    load, now_s, busy = np.zeros(len(times_s)), 0.0, False
    while now_s <= times_s[-1]:
        lasts_s = rng.exponential(20.0 if busy else 15.0)
        inside = (times_s >= now_s) & (times_s < now_s + lasts_s)
        load[inside] = rng.beta(2, 2) if busy else 0.05
        now_s, busy = now_s + lasts_s, not busy
    return np.clip(load + 0.08 * rng.normal(size=len(times_s)) * (load > 0.05), 0.0, 1.0)


def bursts(times_s: Values, rng: np.random.Generator) -> Values:
    """Almost no load, with short bursts of full load."""
    load, now_s = np.full(len(times_s), 0.05), rng.exponential(8.0)
    while now_s <= times_s[-1]:
        lasts_s = 0.3 + rng.exponential(1.2)
        load[(times_s >= now_s) & (times_s < now_s + lasts_s)] = rng.uniform(0.7, 1.0)
        now_s += lasts_s + rng.exponential(8.0)
    return load


PATTERNS: Mapping[Pattern, Callable[[Values, np.random.Generator], Values]] = {
    "steps": steps,
    "random": random,
    "user": user,
    "bursts": bursts,
}


def slow_downs(
    cpu_T: Values, bandwidth_T: Values, responses: Sequence[PressureResponse]
) -> tuple[tuple[float, ...], ...]:
    """Slow-down of each load class over time (C, T), from the pressure on CPU and memory bandwidth (T,) each."""
    return tuple(tuple((1 + cpu * cpu_T + width * bandwidth_T).tolist()) for cpu, width in responses)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrivals:
    """Arrivals of requests in a generated trace. requests_per_s: their mean rate [1/s].

    regular: at constant intervals, like images from a camera; else at random times.
    """

    requests_per_s: float = 10.0
    regular: bool = True

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Values:
        """Arrival times before the end, rising (R,)."""
        count = int(duration_s * self.requests_per_s)
        if self.regular:
            found: Values = np.arange(count) / self.requests_per_s
        else:
            found = np.sort(rng.uniform(0, duration_s, count))
        return found[found < duration_s]


def trace_of(
    pattern: Pattern,
    *,
    seed: int,
    duration_s: float,
    every_s: float = 0.1,
    responses: Sequence[PressureResponse] = (PressureResponse(2.0, 1.0),),
    arrivals: RequestArrivals = RequestArrivals(),
    also: Collection[Literal["cache", "memory"]] = (),
) -> LoadTrace:
    """A trace of one pattern; CPU, memory bandwidth, and the kinds in `also` are drawn independently.

    responses: slow-down by the first two. every_s: time between two values of the load. arrivals: of requests.
    """
    rng = np.random.default_rng(seed)
    times_s = np.multiply(np.arange(int(np.ceil(duration_s / every_s))), every_s, dtype=np.float64)
    cpu_T, bandwidth_T = (PATTERNS[pattern](times_s, rng) for _ in range(2))
    arrivals_s = arrivals.times_s(duration_s, rng)
    further = np.random.default_rng((seed, 1))
    cache_T, memory_T = (PATTERNS[pattern](times_s, further) for _ in range(2))
    return LoadTrace(
        origin=pattern,
        seed=seed,
        duration_s=duration_s,
        times_s=tuple(times_s.tolist()),
        cpu=tuple(cpu_T.tolist()),
        bandwidth=tuple(bandwidth_T.tolist()),
        cache=tuple(cache_T.tolist()) if "cache" in also else (),
        memory=tuple(memory_T.tolist()) if "memory" in also else (),
        slow_down=slow_downs(cpu_T, bandwidth_T, responses),
        arrivals_s=tuple(arrivals_s.tolist()),
    )


MOST_SAMPLES, MOST_ARRIVALS = 3600, 100_000
FEWEST_SAMPLES = 2
"""A sample describes the time since the previous one."""


class _Heard(NamedTuple):
    device: SensedState
    slow_down: float | None


class LoadRecorder:
    """Keeps the latest samples and requests, and makes a trace of them. All calls come from one thread.

    cpu of the trace: CPU use by other processes. memory: the part of the largest available memory that others hold; cache: the
    hits that others take from the best hit rate; both only if sensed. bandwidth is 0: no sensor measures it.
    """

    def __init__(self, origin: str, *, most_samples: int = MOST_SAMPLES, most_arrivals: int = MOST_ARRIVALS) -> None:
        self._origin, self._most_samples, self._most_arrivals = origin, most_samples, most_arrivals
        self._heard: deque[_Heard] = deque()
        self._arrivals_s: deque[float] = deque()

    def sensed(self, device: SensedState | None, slow_down: float | None = None) -> None:
        """Add a sample; a repeated sample counts once. slow_down: of the serving variant; None: unknown."""
        if device is not None and (not self._heard or device.at_s > self._heard[-1].device.at_s):
            self._heard.append(_Heard(device, slow_down))
            self._forget()

    def arrived(self, at_s: float) -> None:
        """Add a request at a time of the monotonic clock."""
        self._arrivals_s.append(at_s)
        self._forget()

    @property
    def trace(self) -> LoadTrace:
        """The trace from the first sample to the last. AdaptiveError: too few samples, or none with the use of the CPU."""
        if len(self._heard) < FEWEST_SAMPLES:
            got = f"{len(self._heard)} samples of the device"
            raise AdaptiveError("load trace", got, allowed=f"{FEWEST_SAMPLES} and more", next_step="record for longer")
        begin_s, end_s = (self._heard[at].device.at_s for at in (0, -1))
        described = list(self._heard)[1:]
        cpu = _filled([one.device.cpu_use_others for one in described])
        if not cpu:
            raise AdaptiveError("load trace", "no sample has the use of the CPU")
        slow_down = _filled([one.slow_down for one in described], before=1.0)
        return LoadTrace(
            origin=self._origin,
            duration_s=end_s - begin_s,
            times_s=tuple(one.device.at_s - begin_s for one in list(self._heard)[:-1]),
            cpu=cpu,
            bandwidth=(0.0,) * len(cpu),
            cache=_taken([one.device.hit_rate for one in described]),
            memory=_taken([one.device.memory_available_mib for one in described]),
            slow_down=(slow_down,) if slow_down else (),
            arrivals_s=tuple(sorted(at_s - begin_s for at_s in self._arrivals_s if begin_s <= at_s < end_s)),
        )

    def _forget(self) -> None:
        """Drop the oldest entries beyond the limits."""
        while len(self._heard) > self._most_samples or (
            len(self._arrivals_s) > self._most_arrivals and len(self._heard) > FEWEST_SAMPLES
        ):
            self._heard.popleft()
            while self._arrivals_s and self._arrivals_s[0] < self._heard[0].device.at_s:
                self._arrivals_s.popleft()
        while len(self._arrivals_s) > self._most_arrivals:
            self._arrivals_s.popleft()


def _filled(values: Sequence[float | None], before: float = 0.0) -> tuple[float, ...]:
    """Values with each unknown one replaced by the previous one; () if all are unknown."""
    filled, last = list[float](), before
    for value in values:
        last = last if value is None else value
        filled.append(last)
    return tuple(filled) if any(value is not None for value in values) else ()


def _taken(values: Sequence[float | None]) -> tuple[float, ...]:
    """The missing share of the largest value at each time; () if all are unknown."""
    most = max((value for value in values if value is not None), default=0.0)
    return _filled([None if value is None else clipped_share(1 - value / most) for value in values]) if most else ()

"""Scenarios: the conditions around a device, phase after phase, in a file that a person writes, and real load.

The simulator and real processes play the same file, or a rescaled copy. Real processes compute, stream through memory,
fill the caches or hold memory.
"""

import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.numbers import Positive, Share
from adaptive_runtime.state.traces.trace import (
    PATTERNS,
    LoadTrace,
    Pattern,
    PressureResponse,
    RecordedTrace,
    Values,
    slow_downs,
)
from profiling_agents.messages import Message

BURNER = "adaptive_runtime.state.traces.burner"
END_S = 2.0


class Stress:
    """Load by so many processes each on CPU, memory bandwidth, the last cache and memory.

    It lasts until the block is left or this process dies. A fifth of the memory always stays available.
    """

    def __init__(
        self,
        *,
        cpu_processes: int = 0,
        bandwidth_processes: int = 0,
        cache_processes: int = 0,
        memory_processes: int = 0,
    ) -> None:
        kinds = {
            "cpu": cpu_processes,
            "bandwidth": bandwidth_processes,
            "cache": cache_processes,
            "memory": memory_processes,
        }
        if min(kinds.values()) < 0:
            raise AdaptiveError("stress", f"{min(kinds.values())} processes", allowed="0 and more")
        self._kinds = [kind for kind, count in kinds.items() for _ in range(count)]
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the running processes."""
        return tuple(process.pid for process in self._processes)

    def __enter__(self) -> Self:
        try:
            for kind in self._kinds:
                command = [sys.executable, "-m", BURNER, kind]
                started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                self._processes.append(started)
            for process in self._processes:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise AdaptiveError("stress", f"a process ended with code {process.wait(END_S)} when it started")
        except BaseException:
            self.__exit__()
            raise
        return self

    def set(self, *, cpu: float = 0.0, bandwidth: float = 0.0, cache: float = 0.0, memory: float = 0.0) -> None:
        """Set the share of time for which each process works, or the share of the available memory that it holds.

        AdaptiveError: a process has ended.
        """
        shares = {"cpu": cpu, "bandwidth": bandwidth, "cache": cache, "memory": memory}
        for kind, process in zip(self._kinds, self._processes, strict=True):
            if process.poll() is not None or process.stdin is None:
                raise AdaptiveError("stress", f"process {process.pid} for {kind} has ended with {process.returncode}")
            process.stdin.write(f"{shares[kind]:.4f}\n")
            process.stdin.flush()

    def follow(self, trace: LoadTrace, ended: Callable[[], bool] = lambda: False) -> None:
        """Reproduce the pressure of a trace over time; returns at its end, or when `ended`."""
        PlayedTrace(self, trace).until(trace.duration_s, ended)
        self.set()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.stdin is not None:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    process.kill()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()


class PlayedTrace:
    """Replays the pressure of a trace by real processes, from now on."""

    def __init__(self, stress: Stress, trace: LoadTrace) -> None:
        self._stress, self._trace = stress, trace
        self._start_s, self._next = time.monotonic(), 0

    @property
    def now_s(self) -> float:
        """The current time in the trace."""
        return time.monotonic() - self._start_s

    def until(self, time_s: float, ended: Callable[[], bool] = lambda: False) -> None:
        """Replay the pressure until a time of the trace, or until `ended`."""
        times_s = self._trace.times_s
        while not ended() and self._next < len(times_s) and times_s[self._next] <= time_s:
            self._wait(times_s[self._next])
            self._stress.set(**self._trace.pressure(self._next))
            self._next += 1
        if not ended():
            self._wait(time_s)

    def _wait(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - self.now_s))


FromTo = tuple[Share, Share]
ShortName = Annotated[str, Field(min_length=1, max_length=64)]
EVERY_S = 1.0


class PhaseLink(Message):
    """The link to another device, in both directions."""

    up_mbps: Positive
    down_mbps: Positive
    round_trip_ms: Annotated[float, Field(ge=0)]


class PhaseDrift(Message):
    """Images that differ from those of the training. lost: share of the accuracy that this costs.

    corruption, severity: by the names of `tasks.data.drift`. stays: share of the loss that remains after weights have adapted.
    """

    corruption: ShortName
    severity: Annotated[int, Field(ge=1, le=5)]
    lost: Share
    stays: Share = 1.0


class ScenarioPhase(Message):
    """Conditions for a time. Pairs are values at the phase's begin and end, linear in between.

    battery: charge. memory: share of the device's memory that other programs leave. cpu, bandwidth, cache: pressure of other
    processes. load: the pattern of this pressure over time; None: constant. peers: links to the available devices; a device
    that is not named is unavailable.
    """

    name: ShortName
    lasts_s: Positive
    requests_per_s: Annotated[float, Field(ge=0)]
    battery: FromTo = (1.0, 1.0)
    charging: bool = False
    memory: FromTo = (1.0, 1.0)
    cpu: Share = 0.0
    bandwidth: Share = 0.0
    cache: Share = 0.0
    load: Pattern | None = None
    drift: PhaseDrift | None = None
    peers: dict[ShortName, PhaseLink] = Field(default_factory=dict)


class ScenarioMoment(NamedTuple):
    """A time in a scenario. since_s: time since the phase's begin. memory_mib: memory that other programs leave."""

    phase: ScenarioPhase
    since_s: float
    battery: float
    memory_mib: float


class Scenario(RecordedTrace):
    """A sequence of phases. memory_total_mib: of the device."""

    NEXT_STEP: ClassVar[str] = "correct the scenario"

    version: Literal[1] = 1
    origin: str
    memory_total_mib: Positive
    phases: Annotated[tuple[ScenarioPhase, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _battery_rises_on_a_supply_alone(self) -> Self:
        charge = 1.0
        for phase in self.phases:
            begin, end = phase.battery
            if not phase.charging and max(begin - charge, end - begin) > 0:
                got = f"{max(begin, end):.0%} after {charge if begin > charge else begin:.0%}"
                raise ValueError(f"phase '{phase.name}' has a battery of {got}, and is not charging")
            charge = end
        if len({phase.name for phase in self.phases}) < len(self.phases):
            raise ValueError("two phases have one name")
        return self

    @property
    def duration_s(self) -> float:
        """Duration of all phases together."""
        return sum(phase.lasts_s for phase in self.phases)

    @cached_property
    def starts_s(self) -> tuple[float, ...]:
        """Begin of each phase."""
        return (0.0, *accumulate(phase.lasts_s for phase in self.phases[:-1]))

    @property
    def peers(self) -> tuple[str, ...]:
        """All other devices."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.peers))

    def at(self, time_s: float) -> ScenarioMoment:
        """The conditions at a time; after the end those of the last phase's end."""
        number = max(0, bisect_right(self.starts_s, time_s) - 1)
        phase, since_s = self.phases[number], time_s - self.starts_s[number]
        share = min(1.0, since_s / phase.lasts_s)
        (battery, battery_end), (memory, memory_end) = phase.battery, phase.memory
        memory += share * (memory_end - memory)
        return ScenarioMoment(phase, since_s, battery + share * (battery_end - battery), memory * self.memory_total_mib)

    def lasting(self, duration_s: float) -> Self:
        """The same phases scaled to another duration; request rates stay, so the number of requests scales, too."""
        scale = duration_s / self.duration_s
        phases = tuple(each.model_copy(update={"lasts_s": each.lasts_s * scale}) for each in self.phases)
        return type(self)(origin=self.origin, memory_total_mib=self.memory_total_mib, phases=phases)

    def trace(self, responses: Sequence[PressureResponse], *, seed: int, every_s: float = EVERY_S) -> LoadTrace:
        """Load and requests of all phases; requests come at constant intervals. responses: of the load classes."""
        rng, further = np.random.default_rng(seed), np.random.default_rng((seed, 1))
        times_s, cpu, bandwidth, cache, memory, arrivals_s = (list[Values]() for _ in range(6))
        for start_s, phase in zip(self.starts_s, self.phases, strict=True):
            within_s = np.arange(0.0, phase.lasts_s, every_s)
            times_s.append(start_s + within_s)
            drawn = ((cpu, phase.cpu, rng), (bandwidth, phase.bandwidth, rng), (cache, phase.cache, further))
            for values, pressure, by in drawn:
                comes = np.ones(len(within_s)) if phase.load is None else PATTERNS[phase.load](within_s, by)
                values.append(pressure * comes)
            memory.append(1 - np.interp(within_s, (0.0, phase.lasts_s), phase.memory))
            count = int(phase.lasts_s * phase.requests_per_s)
            arrivals_s.append(start_s + np.arange(count) / max(phase.requests_per_s, 1e-9))
        cpu_T, bandwidth_T, arrivals_s_R = (np.concatenate(one) for one in (cpu, bandwidth, arrivals_s))
        return LoadTrace(
            origin=self.origin,
            seed=seed,
            duration_s=self.duration_s,
            times_s=tuple(np.concatenate(times_s).tolist()),
            cpu=tuple(cpu_T.tolist()),
            bandwidth=tuple(bandwidth_T.tolist()),
            cache=tuple(np.concatenate(cache).tolist()),
            memory=tuple(np.concatenate(memory).tolist()),
            slow_down=slow_downs(cpu_T, bandwidth_T, responses),
            arrivals_s=tuple(arrivals_s_R[arrivals_s_R < self.duration_s].tolist()),
        )

"""Real load by processes that compute, stream through memory, fill the caches or hold memory, following a trace."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.traces.trace import LoadTrace

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

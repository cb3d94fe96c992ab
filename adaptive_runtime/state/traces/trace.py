"""A trace: pressure on a device and the resulting slow-down over time, and the arrivals of requests.

Legend: T times, C load classes, R requests.
"""

from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from adaptive_runtime.state.traces.recorded import RecordedTrace

Time = Annotated[float, Field(ge=0)]
LoadPressure = Annotated[float, Field(ge=0, le=1)]


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
    times_s: Annotated[tuple[Time, ...], Field(min_length=1)]
    cpu: tuple[LoadPressure, ...]
    bandwidth: tuple[LoadPressure, ...]
    cache: tuple[LoadPressure, ...] = ()
    memory: tuple[LoadPressure, ...] = ()
    slow_down: tuple[tuple[Annotated[float, Field(gt=0)], ...], ...]
    arrivals_s: tuple[Time, ...] = ()

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

"""A trace of a link: bandwidth and round trip over time, recorded or synthetic, for replay.

Legend: T times.
"""

import bisect
import time
from collections.abc import Callable
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links.measures import MeasuredLink
from adaptive_runtime.state.traces.trace import RecordedTrace

Bandwidth = Annotated[float, Field(gt=0)]
RoundTrip = Annotated[float, Field(ge=0)]


class BandwidthTrace(RecordedTrace):
    """Piecewise constant bandwidths up and down, and round trip (T,) each.

    times_s: from 0, rising. duration_s: length after which the trace repeats.
    """

    version: Literal[1] = 1
    origin: str
    duration_s: Annotated[float, Field(gt=0)]
    times_s: Annotated[tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=1)]
    up_mbps: tuple[Bandwidth, ...]
    down_mbps: tuple[Bandwidth, ...]
    round_trip_ms: tuple[RoundTrip, ...]

    @model_validator(mode="after")
    def _times_rise_and_have_values(self) -> Self:
        if self.times_s[0] != 0 or (np.diff(self.times_s) <= 0).any():
            raise ValueError("times_s do not rise from 0")
        if self.times_s[-1] >= self.duration_s:
            raise ValueError(f"a time is not before the end, {self.duration_s:g} s")
        for values in (self.up_mbps, self.down_mbps, self.round_trip_ms):
            if len(values) != len(self.times_s):
                raise ValueError(f"{len(values)} values for {len(self.times_s)} times")
        return self

    def at(self, time_s: float) -> MeasuredLink:
        """The link at a time; the trace repeats after its end."""
        number = bisect.bisect_right(self.times_s, time_s % self.duration_s) - 1
        return MeasuredLink(
            up_mbps=self.up_mbps[number], down_mbps=self.down_mbps[number], round_trip_ms=self.round_trip_ms[number]
        )


class LinkRecorder:
    """Records the measures of a link as a trace."""

    def __init__(self, origin: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._origin, self._clock = origin, clock
        self._start_s: float | None = None
        self._rows: list[tuple[float, float, float, float]] = []

    def add(self, link: MeasuredLink) -> None:
        """Add the current measures; an unknown link is left out."""
        if link.up_mbps is None or link.down_mbps is None or link.round_trip_ms is None:
            return
        now_s = self._clock()
        self._start_s = now_s if self._start_s is None else self._start_s
        at_s = now_s - self._start_s
        if not self._rows or at_s > self._rows[-1][0]:
            self._rows.append((at_s, link.up_mbps, link.down_mbps, link.round_trip_ms))

    def trace(self) -> BandwidthTrace:
        """The trace up to now. AdaptiveError: nothing has been recorded."""
        if self._start_s is None:
            raise AdaptiveError("trace of a link", "nothing is recorded", next_step="use the link first")
        times_s, up, down, round_trips = zip(*self._rows, strict=True)
        duration_s = max(self._clock() - self._start_s, times_s[-1] + 1e-3)
        return BandwidthTrace(
            origin=self._origin,
            duration_s=duration_s,
            times_s=times_s,
            up_mbps=up,
            down_mbps=down,
            round_trip_ms=round_trips,
        )

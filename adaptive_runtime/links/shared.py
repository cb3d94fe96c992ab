"""What is known of the link to one device, by all connections that go over it.

SubNets of one bundle have a connection each to the same device. A link that became slower, or a device that no longer answers,
is noticed by the one SubNet whose requests went there; the others would have to lose requests of their own to find out.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from adaptive_runtime.links.measures import LinkMeasures, MeasuredLink
from adaptive_runtime.links.probing import ProbeBudget, ProbeKind, probe_bytes

WAIT_S = 0.02


class DueProbe(NamedTuple):
    """A probe that is sent now, with so many bytes each way.

    restarts: of the measures before it, where something hints at a change; None: nothing does.
    """

    kind: ProbeKind
    size: int
    restarts: int | None


class SharedLink:
    """The link to one device: its measures, its probes, and whether the device is heard.

    Several threads may call it. A connection that is opened while no other one is may take another way than those before, and
    begins new measures. clock: in seconds, does not go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock, self._measuring = clock, threading.Lock(), threading.Lock()
        self._measures, self._budget = LinkMeasures(), ProbeBudget(clock())
        self._open = 0
        self._heard_s = self._doubted_s = -math.inf
        self.arrivals = 0
        """How often a connection was ready for requests."""
        self.version = 0
        """Another number after anything was measured, and after a connection came or went."""

    def opened(self) -> None:
        """One more connection is open."""
        with self._lock:
            if not self._open:
                self._measures, self._budget = LinkMeasures(), ProbeBudget(self._clock())
            self._open += 1
            self.version += 1

    def closed(self) -> None:
        """A connection that was open is not any more."""
        with self._lock:
            self._open -= 1
            self.version += 1

    def arrived(self) -> None:
        """A connection is ready for requests: those that wait before they try again need not wait longer."""
        with self._lock:
            self.arrivals += 1

    def turned(self) -> None:
        """A connection is used from now on, or not any more."""
        with self._lock:
            self.version += 1

    def up(self, count: int, took_ms: float) -> None:
        """As `LinkMeasures.up`."""
        with self._lock:
            self._measures.up(count, took_ms)
            self.version += 1

    def down(self, count: int, took_ms: float) -> None:
        """As `LinkMeasures.down`."""
        with self._lock:
            self._measures.down(count, took_ms)
            self.version += 1

    def round_trip(self, took_ms: float) -> None:
        """As `LinkMeasures.round_trip`."""
        with self._lock:
            self._measures.round_trip(took_ms)
            self.version += 1

    def heard(self) -> None:
        """A frame came."""
        with self._lock:
            self.version += self._heard_s <= self._doubted_s
            self._heard_s = self._clock()

    def doubt(self) -> None:
        """An answer has not come in time: whether the device still answers is not known until a frame comes."""
        with self._lock:
            self._doubted_s = self._clock()
            self.version += 1

    @property
    def doubted(self) -> bool:
        """Whether nothing was heard since an answer was late."""
        with self._lock:
            return self._heard_s <= self._doubted_s > -math.inf

    @property
    def link(self) -> MeasuredLink:
        """The link as it is now."""
        with self._lock:
            return self._measures.link

    def idle(self, after_s: float) -> bool:
        """Whether it may be probed: nothing came for so long, or something hints at another bandwidth."""
        with self._lock:
            return self._measures.changed or self._clock() - self._heard_s > after_s

    def due(self) -> DueProbe | None:
        """The probe that is sent now; None: it is too early for one."""
        with self._lock:
            link, changed = self._measures.link, self._measures.changed
            mbps = min(link.up_mbps or 0.0, link.down_mbps or 0.0)
            kind = self._budget.due(self._clock(), mbps, changed=changed)
            if kind is None:
                return None
            restarts = self._measures.restarts if changed and kind == "block" else None
            return DueProbe(kind, probe_bytes(kind, mbps, self._budget.longer), restarts)

    def answered(self, probe: DueProbe) -> None:
        """A probe was answered, and its times were measured."""
        if probe.restarts is not None:
            with self._lock:
                self._budget.answered(self._clock(), confirmed=self._measures.restarts > probe.restarts)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[bool]:
        """One connection at a time, since they would share the bandwidth. Whether the link has to be measured first."""
        while not self._measuring.acquire(blocking=False):
            await asyncio.sleep(WAIT_S)
        try:
            link = self.link
            yield None in (link.up_mbps, link.down_mbps, link.round_trip_ms)
        finally:
            self._measuring.release()

"""State of the link to one device, shared by all connections over it.

Each SubNet of a bundle has its own connection to the same device. If the link becomes slower or the device stops answering,
only the SubNet whose requests went there notices; without sharing, the others would have to lose requests themselves.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from adaptive_runtime.offload.links.measures import LinkMeasures, MeasuredLink
from adaptive_runtime.offload.links.probing import ProbeBudget, ProbeKind, probe_bytes

WAIT_S = 0.02


class DueProbe(NamedTuple):
    """A probe to send now, with so many bytes each way.

    restarts: number of restarts of the measures before the probe, if it follows a hint; None: it does not.
    """

    kind: ProbeKind
    size: int
    restarts: int | None


class SharedLink:
    """The link to one device: its measures, its probes, and whether the device is heard.

    Several threads may call it. A connection that opens while no other is open may take another way than the earlier ones, and
    resets the measures. clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock, self._measuring = clock, threading.Lock(), threading.Lock()
        self._measures, self._budget = LinkMeasures(), ProbeBudget(clock())
        self._open = 0
        self._heard_s = self._doubted_s = -math.inf
        self.arrivals = 0
        """Number of times that a connection became ready for requests."""
        self.version = 0
        """Changes after each measurement, and after a connection came or went."""

    def opened(self) -> None:
        """Count one more open connection."""
        with self._lock:
            if not self._open:
                self._measures, self._budget = LinkMeasures(), ProbeBudget(self._clock())
            self._open += 1
            self.version += 1

    def closed(self) -> None:
        """Count one open connection less."""
        with self._lock:
            self._open -= 1
            self.version += 1

    def arrived(self) -> None:
        """Report a connection that is ready for requests: waiting reconnects need not wait longer."""
        with self._lock:
            self.arrivals += 1

    def turned(self) -> None:
        """Report that a connection is used from now on, or no longer."""
        with self._lock:
            self.version += 1

    def up(self, count: int, took_ms: float) -> None:
        """See `LinkMeasures.up`."""
        with self._lock:
            self._measures.up(count, took_ms)
            self.version += 1

    def down(self, count: int, took_ms: float) -> None:
        """See `LinkMeasures.down`."""
        with self._lock:
            self._measures.down(count, took_ms)
            self.version += 1

    def round_trip(self, took_ms: float) -> None:
        """See `LinkMeasures.round_trip`."""
        with self._lock:
            self._measures.round_trip(took_ms)
            self.version += 1

    def heard(self) -> None:
        """Report a received frame."""
        with self._lock:
            self.version += self._heard_s <= self._doubted_s
            self._heard_s = self._clock()

    def doubt(self) -> None:
        """Report a late answer: the device is doubted until a frame comes."""
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
        """The current measures of the link."""
        with self._lock:
            return self._measures.link

    def idle(self, after_s: float) -> bool:
        """Whether it may be probed: nothing came for so long, or a measurement hints at another bandwidth."""
        with self._lock:
            return self._measures.changed or self._clock() - self._heard_s > after_s

    def due(self) -> DueProbe | None:
        """The probe to send now; None: it is too early."""
        with self._lock:
            link, changed = self._measures.link, self._measures.changed
            mbps = min(link.up_mbps or 0.0, link.down_mbps or 0.0)
            kind = self._budget.due(self._clock(), mbps, changed=changed)
            if kind is None:
                return None
            restarts = self._measures.restarts if changed and kind == "block" else None
            return DueProbe(kind, probe_bytes(kind, mbps, self._budget.longer), restarts)

    def answered(self, probe: DueProbe) -> None:
        """Take over the result of a probe whose times were measured."""
        if probe.restarts is not None:
            with self._lock:
                self._budget.answered(self._clock(), confirmed=self._measures.restarts > probe.restarts)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[bool]:
        """Lock for measuring, since concurrent connections would share the bandwidth.

        Yields whether to measure the link first.
        """
        while not self._measuring.acquire(blocking=False):
            await asyncio.sleep(WAIT_S)
        try:
            link = self.link
            yield None in (link.up_mbps, link.down_mbps, link.round_trip_ms)
        finally:
            self._measuring.release()

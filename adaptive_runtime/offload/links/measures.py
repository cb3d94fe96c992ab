"""Measures of a link: bandwidth and round trip from regular traffic, and the budget for probes of idle links.

Each side times its own half. The receiver times a frame from its head to its last byte, which gives the bandwidth
without the delay. The sender times from its request to the answer and subtracts the durations reported by the other
side, which gives the round trip without a common clock.

Probes use at most a thousandth of the bandwidth. Pings measure the round trip. Trains of a few packets hint at a
changed bandwidth, soon and cheaply. Blocks measure the bandwidth: from time to time, and at once after a hint, for
which one block is always saved. Each kind has its own savings, which grow with time and bandwidth.

All connections to one device share the state of the link. Each SubNet of a bundle has its own connection. If the link
becomes slower or the device stops answering, only the SubNet whose requests went there notices; without sharing, the
others would have to lose requests themselves.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

from profiling_agents.messages import Message

LEAST_BYTES = 1 << 13
"""Smaller payloads come in a few packets."""
FIRST_BYTES = 1400
"""Bytes of a payload that may arrive in the first packet together with the head; their time is unknown."""
SHORTEST_MS = 0.9
"""Shorter times carry no information, since clocks and threads are late."""
HINT = 2.0
"""A time that is off by this factor hints at a change."""
CHANGED = 1.5
"""A payload that is off by this factor after a hint confirms the change."""
SLOWER = 1.2
"""Small payloads that are slower by this factor count together.

The first long payload that is slower counts as a short one.
"""
NO_BURST_BYTES = 1 << 16
"""More than a queue lets pass at once."""
BURST_MS = 2.0
"""Payloads that should take less, and do, may have come in one burst."""
LEAST_MS = 1e-3
WEIGHT = 0.2
"""Weight of the newest value."""


class WeightedMean:
    """Exponentially weighted mean and variance of a sequence of values."""

    __slots__ = ("count", "mean", "variance", "weight")

    def __init__(self, weight: float = WEIGHT) -> None:
        self.weight, self.count, self.mean, self.variance = weight, 0, math.nan, 0.0

    def add(self, value: float, times: float = 1.0) -> None:
        """Add a value as if it came so many times.

        The first values count as in a plain mean, so that the very first one does not dominate.
        """
        self.count += 1
        if self.count == 1:
            self.mean = value
            return
        weight = 1 - (1 - max(self.weight, 1 / self.count)) ** times
        change = value - self.mean
        self.mean += weight * change
        self.variance = (1 - weight) * (self.variance + weight * change * change)

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.variance)


class MeasuredLink(Message):
    """Current measures of a link, from the coordinator to a device (up) and back (down). None: not measured yet.

    spreads: standard deviations; for bandwidths relative to them.
    """

    up_mbps: float | None = None
    down_mbps: float | None = None
    round_trip_ms: float | None = None
    up_spread: float = 0.0
    down_spread: float = 0.0
    round_trip_spread_ms: float = 0.0

    def transfer_ms(self, up_bytes: float, down_bytes: float) -> float:
        """Time to send tensors up and their answer down [ms]; infinite for an unknown link."""
        if self.round_trip_ms is None:
            return math.inf
        total_ms = self.round_trip_ms
        for count, mbps in ((up_bytes, self.up_mbps), (down_bytes, self.down_mbps)):
            if count:
                total_ms += math.inf if mbps is None else count * 8e-3 / mbps
        return total_ms


class _Direction:
    """Time per byte in one direction [ms]. changed: a measurement hints at a new value."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.mean = WeightedMean(weight)
        self.changed = False
        self.restarts = 0
        self._slower, self._long_known = False, False
        self._small_bytes, self._small_ms = 0, 0.0

    def add(self, count: int, took_ms: float) -> None:
        """Add a payload, except those that queues and shapers may pass in a burst: they say nothing about the bandwidth."""
        if count < LEAST_BYTES:
            self._add_small(count - FIRST_BYTES, took_ms)
            return
        expected_ms = self.mean.mean * count if self.mean.count else math.inf
        if max(expected_ms, took_ms) < BURST_MS:
            return
        value = max(took_ms, LEAST_MS) / count
        hinted, known = self.changed, self.mean.mean
        if hinted and not known / CHANGED < value < known * CHANGED:
            self.mean = WeightedMean(self._weight)  # earlier measurements belong to another link state
            self.restarts += 1
            self._long_known = False
        self.changed = not hinted and count >= NO_BURST_BYTES and (value < known / HINT or value > known * HINT)
        slower, is_long = value > known * SLOWER, count >= NO_BURST_BYTES
        # a single slow transfer may come from a lost packet
        may_be_a_loss = slower and not self._slower and self._long_known
        self._slower, self._long_known = slower, self._long_known or is_long
        shorts = count / NO_BURST_BYTES  # a long transfer is the mean of so many short ones
        self.mean.add(value, 1.0 if may_be_a_loss else max(1.0, shorts))

    def _add_small(self, behind: int, took_ms: float) -> None:
        """Add a payload of a few packets, with `behind` bytes after the first packet.

        A burst makes a payload fast, but only the link makes it slow. A single fast payload is therefore only a hint, while
        several slow payloads together count.
        """
        if behind <= 0 or not self.mean.count:
            return
        expected_ms = self.mean.mean * behind
        if expected_ms >= SHORTEST_MS and not expected_ms / HINT <= took_ms <= expected_ms * HINT + BURST_MS:
            self.changed = True
        self._small_bytes, self._small_ms = self._small_bytes + behind, self._small_ms + took_ms
        if self._small_bytes >= LEAST_BYTES:
            if self._small_ms >= max(SLOWER * self.mean.mean * self._small_bytes, 3 * BURST_MS):
                self.mean.add(self._small_ms / self._small_bytes)
            self._small_bytes, self._small_ms = 0, 0.0


class LinkMeasures:
    """Measures of a link from its traffic. Bandwidths are averaged as times per byte, since transfers are sums of these."""

    def __init__(self, weight: float = WEIGHT) -> None:
        self._up, self._down = _Direction(weight), _Direction(weight)
        self._round_trip = WeightedMean(weight)

    def up(self, count: int, took_ms: float) -> None:
        """Add a payload that reached the device, timed from the head of its frame to its last byte."""
        self._up.add(count, took_ms)

    def down(self, count: int, took_ms: float) -> None:
        """Add a payload that came from the device."""
        self._down.add(count, took_ms)

    @property
    def changed(self) -> bool:
        """Whether small payloads hint at a changed bandwidth, which only a large one can confirm."""
        return self._up.changed or self._down.changed

    @property
    def restarts(self) -> int:
        """Number of confirmed hints, after which the bandwidth was measured anew."""
        return self._up.restarts + self._down.restarts

    def round_trip(self, took_ms: float) -> None:
        """Add a request's duration without the time for computing and receiving on either side."""
        self._round_trip.add(max(took_ms, 0.0))

    @property
    def link(self) -> MeasuredLink:
        """The current measures."""
        known = self._round_trip.count > 0
        return MeasuredLink(
            up_mbps=_mbps(self._up.mean),
            down_mbps=_mbps(self._down.mean),
            round_trip_ms=self._round_trip.mean if known else None,
            up_spread=_share(self._up.mean),
            down_spread=_share(self._down.mean),
            round_trip_spread_ms=self._round_trip.deviation if known else 0.0,
        )


def _mbps(ms_of_byte: WeightedMean) -> float | None:
    return 8e-3 / ms_of_byte.mean if ms_of_byte.count else None


def _share(mean: WeightedMean) -> float:
    return mean.deviation / mean.mean if mean.count else 0.0


ProbeKind = Literal["ping", "train", "block"]

SHARE = 1e-3
SHARES: dict[ProbeKind, float] = {"block": 0.5, "train": 0.35, "ping": 0.15}
"""Shares of the budget, the more important kind first."""
OVERHEAD_BYTES = 400
"""Upper limit for a probe's frame, the TCP and IP headers, and its acknowledgement, in one direction."""
PACKET_SHARE = 1.06
"""Bytes on the link for each byte of a probe: headers of packets, and acknowledgements of the other direction."""
BLOCK_MS, TRAIN_MS = 20.0, 1.0
"""Time that a block, or a train behind its first packet, should occupy the link."""
LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES = 1 << 13, 1 << 18
LEAST_TRAIN_BYTES, MOST_TRAIN_BYTES = 1460, (1 << 13) - 1 - FIRST_BYTES
"""Size behind the first packet."""
MOST_LONGER = 4
LEAST_PAUSE_S = 1.0
FIRST_DOUBT_S, LONGEST_DOUBT_S = 30.0, 960.0
"""Time during which hints are ignored after one that a block did not confirm; doubled each time.

Shapers that let bursts pass cause such hints.
"""


def block_bytes(mbps: float) -> int:
    """The size of a block for a bandwidth."""
    return int(min(max(mbps * BLOCK_MS * 125, LEAST_BLOCK_BYTES), MOST_BLOCK_BYTES))


def probe_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> int:
    """The size of a probe for a bandwidth. longer: factor on the usual length of a train."""
    if kind == "train":
        return FIRST_BYTES + int(min(longer * max(mbps * TRAIN_MS * 125, LEAST_TRAIN_BYTES), MOST_TRAIN_BYTES))
    return block_bytes(mbps) if kind == "block" else 0


def cost_bytes(kind: ProbeKind, mbps: float, longer: int = 1) -> float:
    """Bytes that a probe takes in each direction of the link, headers included."""
    return OVERHEAD_BYTES + PACKET_SHARE * probe_bytes(kind, mbps, longer)


class ProbeBudget:
    """Savings for probes of one link. now_s: of a monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._until_s = self._last_s = now_s
        self._saved: dict[ProbeKind, float] = dict.fromkeys(SHARES, 0.0)
        self._trusted_s, self._doubt_s = now_s, FIRST_DOUBT_S
        self.longer = 1
        """Factor on the length of trains, raised until a burst does not carry a whole train."""

    def due(self, now_s: float, mbps: float, *, changed: bool = False) -> ProbeKind | None:
        """The probe to send now, for the bandwidth of the slower direction; None: it is too early.

        changed: a measurement hints at another bandwidth; the block that is saved for this case is sent.
        """
        rate = SHARE * mbps * 125e3 * (now_s - self._until_s)
        self._until_s = now_s
        for kind, share in SHARES.items():
            most = cost_bytes(kind, mbps, self.longer) * (2 if kind == "block" else 1)
            self._saved[kind] = min(self._saved[kind] + share * rate, most)
        if now_s - self._last_s < LEAST_PAUSE_S:
            return None
        for kind in SHARES:
            cost = cost_bytes(kind, mbps, self.longer)
            spare = cost if kind == "block" and not (changed and now_s >= self._trusted_s) else 0.0
            if self._saved[kind] >= cost + spare:
                self._saved[kind] -= cost
                self._last_s = now_s
                return kind
        return None

    def answered(self, now_s: float, *, confirmed: bool) -> None:
        """Report whether a block confirmed the hint before it."""
        if confirmed:
            self._doubt_s = FIRST_DOUBT_S
        else:
            self._trusted_s, self._doubt_s = now_s + self._doubt_s, min(2 * self._doubt_s, LONGEST_DOUBT_S)
            self.longer = min(2 * self.longer, MOST_LONGER)


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

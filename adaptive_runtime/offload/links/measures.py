"""Measures of a link: bandwidth of both directions and round trip, with their spreads, from regular traffic.

Each side times its own half. The receiver times a frame from its head to its last byte, which gives the bandwidth without the
delay. The sender times from its request to the answer and subtracts the durations reported by the other side, which gives the
round trip without a common clock.
"""

import math

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

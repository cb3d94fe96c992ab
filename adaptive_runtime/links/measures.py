"""What a link is like: bandwidth of both directions and round trip, with their spreads, from what crosses it anyway.

Each side times its own half: the receiver from the head of a frame to its last byte, which is the bandwidth and has
no share of the delay; the sender from its request to the answer, less all that the other side has told, which is the round trip
and needs no common clock.
"""

import math

from profiling_agents.messages import Message

LEAST_BYTES = 1 << 13
"""Smaller payloads come in a few packets."""
FIRST_BYTES = 1400
"""So many bytes of a payload may come together with its head, in the first packet; their time is not known."""
SHORTEST_MS = 0.9
"""Less than that says nothing, since clocks and threads are late."""
HINT = 2.0
"""A time that is off by this factor hints at a change."""
CHANGED = 1.5
"""A payload that is off by this factor after a hint confirms it."""
SLOWER = 1.2
"""Small payloads that are slower by this factor count together. The first long one that is slower counts as a short one."""
NO_BURST_BYTES = 1 << 16
"""More than a queue lets pass at once."""
BURST_MS = 2.0
"""Payloads that should take less, and do, may have come in one burst."""
LEAST_MS = 1e-3
WEIGHT = 0.2
"""Of the newest value."""


class WeightedMean:
    """Exponentially weighted mean and variance of values that come one after the other."""

    __slots__ = ("count", "mean", "variance", "weight")

    def __init__(self, weight: float = WEIGHT) -> None:
        self.weight, self.count, self.mean, self.variance = weight, 0, math.nan, 0.0

    def add(self, value: float, times: float = 1.0) -> None:
        """Add a value as if it came so many times.

        The first values count as in a plain mean, so that no value rules because it was the first.
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
    """A link as it is now, from home to a device (up) and back (down). None: nothing has crossed it that would tell.

    spreads: standard deviations; of bandwidths as shares of them.
    """

    up_mbps: float | None = None
    down_mbps: float | None = None
    round_trip_ms: float | None = None
    up_spread: float = 0.0
    down_spread: float = 0.0
    round_trip_spread_ms: float = 0.0

    def transfer_ms(self, up_bytes: float, down_bytes: float) -> float:
        """Until tensors have gone up and their answer has come down [ms]; infinite for an unknown link."""
        if self.round_trip_ms is None:
            return math.inf
        total_ms = self.round_trip_ms
        for count, mbps in ((up_bytes, self.up_mbps), (down_bytes, self.down_mbps)):
            if count:
                total_ms += math.inf if mbps is None else count * 8e-3 / mbps
        return total_ms


class _Direction:
    """The time of a byte in one direction [ms]. changed: something hints that it is another one now."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self.mean = WeightedMean(weight)
        self.changed = False
        self.restarts = 0
        self._slower, self._long_known = False, False
        self._small_bytes, self._small_ms = 0, 0.0

    def add(self, count: int, took_ms: float) -> None:
        """A payload that a link carries in a burst, as queues and shapers let it, says nothing of the bandwidth."""
        if count < LEAST_BYTES:
            self._add_small(count - FIRST_BYTES, took_ms)
            return
        expected_ms = self.mean.mean * count if self.mean.count else math.inf
        if max(expected_ms, took_ms) < BURST_MS:
            return
        value = max(took_ms, LEAST_MS) / count
        hinted, known = self.changed, self.mean.mean
        if hinted and not known / CHANGED < value < known * CHANGED:
            self.mean = WeightedMean(self._weight)  # what was measured before is of another link
            self.restarts += 1
            self._long_known = False
        self.changed = not hinted and count >= NO_BURST_BYTES and (value < known / HINT or value > known * HINT)
        slower, is_long = value > known * SLOWER, count >= NO_BURST_BYTES
        # a packet that was lost makes one transfer slow
        may_be_a_loss = slower and not self._slower and self._long_known
        self._slower, self._long_known = slower, self._long_known or is_long
        shorts = count / NO_BURST_BYTES  # a long transfer is the mean of so many short ones
        self.mean.add(value, 1.0 if may_be_a_loss else max(1.0, shorts))

    def _add_small(self, behind: int, took_ms: float) -> None:
        """A payload in a few packets, of which so many bytes came behind the first.

        A burst makes it fast, and nothing makes it slow but the link. So one that is fast hints alone, and several together
        that are slow count.
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
    """Takes what crosses a link. Of bandwidths the times of a byte are averaged, since transfers are sums of these."""

    def __init__(self, weight: float = WEIGHT) -> None:
        self._up, self._down = _Direction(weight), _Direction(weight)
        self._round_trip = WeightedMean(weight)

    def up(self, count: int, took_ms: float) -> None:
        """So many bytes reached the device, from the head of their frame to the last of them."""
        self._up.add(count, took_ms)

    def down(self, count: int, took_ms: float) -> None:
        """So many bytes came from the device."""
        self._down.add(count, took_ms)

    @property
    def changed(self) -> bool:
        """Whether small payloads hint that the bandwidth is another one than it was; a large one tells."""
        return self._up.changed or self._down.changed

    @property
    def restarts(self) -> int:
        """How often a hint was confirmed, so that the bandwidth was measured anew."""
        return self._up.restarts + self._down.restarts

    def round_trip(self, took_ms: float) -> None:
        """A request and its answer, without what they took on the devices and to be received."""
        self._round_trip.add(max(took_ms, 0.0))

    @property
    def link(self) -> MeasuredLink:
        """The link as it is now."""
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

"""Expected latency of an offloaded SubNet, from current link measures, the load on the coordinator, and the runs so far."""

import threading
import time
from collections.abc import Callable, Mapping
from math import sqrt
from typing import NamedTuple

from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.links.measures import WeightedMean
from adaptive_runtime.offload.split import SendingPlan
from adaptive_runtime.offload.split.planned import coded_share
from adaptive_runtime.offload.split.replanning import ms_per_byte

HALF_S = 10.0
"""Time without a run after which the influence of earlier runs has halved."""


class ExpectedPlacement(NamedTuple):
    """Mean and deviation of a request's latency [ms], the plan to send it with, and a description of plan and links."""

    mean_ms: float
    deviation_ms: float
    sent: SendingPlan
    told: str

    @property
    def planned_ms(self) -> float:
        """The latency from plan and links alone, without the runs so far."""
        return self.sent.latency_ms

    @property
    def peers(self) -> frozenset[str]:
        """The devices of the plan besides the coordinator."""
        return frozenset(self.sent.plan.peers)


class RunRatio:
    """Ratio of measured to expected latencies of runs over the same devices.

    It covers effects that plans and links do not know, such as load of another device. A run behaves like the latest ones with
    a probability that halves in `HALF_S`, and as planned otherwise. The prediction for a device that was slow is therefore
    uncertain for a while before it returns to the plan.

    Several threads may call it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ratios, self._latest_s = clock, WeightedMean(), 0.0
        self._lock = threading.Lock()
        self.runs = 0
        """Number of runs so far."""

    def add(self, ratio: float) -> None:
        """Add the ratio of one more run."""
        with self._lock:
            self._ratios.add(ratio)
            self._latest_s = self._clock()
            self.runs += 1

    @property
    def now(self) -> tuple[float, float]:
        """Mean and deviation; (1, 0) before the first run."""
        with self._lock:
            if not self._ratios.count:
                return 1.0, 0.0
            left = 0.5 ** ((self._clock() - self._latest_s) / HALF_S)
            off, spread = self._ratios.mean - 1.0, self._ratios.deviation
            return 1.0 + left * off, sqrt(left * (spread * spread + (1.0 - left) * off * off))


def expected(
    found: SendingPlan, links: Mapping[str, MeasuredLink], slow_deviation: float, ratio: tuple[float, float]
) -> ExpectedPlacement:
    """The expectation for a plan that can be followed.

    slow_deviation: deviation of the coordinator's slow-down. ratio: mean and deviation from the runs so far.
    """
    mean, deviation = ratio
    variance = mean * mean * _variance(found, links, slow_deviation) + (found.latency_ms * deviation) ** 2
    known = "; ".join(f"{name}: {_link(links[name])}" for name in sorted(found.plan.peers))
    told = f"{found.plan.line}; {known}"
    return ExpectedPlacement(found.latency_ms * mean, sqrt(variance), found, told)


def _variance(found: SendingPlan, links: Mapping[str, MeasuredLink], slow_deviation: float) -> float:
    """Variance of the latency [ms²], from the spreads of links and of the coordinator's slow-down."""
    share = coded_share(found.coding)
    variance = (found.plan.home_ms * slow_deviation) ** 2
    for name, use in found.plan.links.items():
        link = links[name]
        variance += (use.messages * link.round_trip_spread_ms) ** 2
        for count, mbps, spread in (
            (use.up_bytes, link.up_mbps, link.up_spread),
            (use.down_bytes, link.down_mbps, link.down_spread),
        ):
            variance += (share * count * ms_per_byte(mbps) * spread) ** 2
    return variance


def _link(link: MeasuredLink) -> str:
    ways = ("unknown" if mbps is None else f"{mbps:.3g}" for mbps in (link.up_mbps, link.down_mbps))
    round_trip = "unknown" if link.round_trip_ms is None else f"{link.round_trip_ms:.3g} ms"
    return f"{' and '.join(ways)} Mbit/s, round trip {round_trip}"

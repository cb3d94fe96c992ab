"""A simulated fleet for `benchmarks.rollout`: devices of several kinds that tell sums over windows of an hour.

Legend: R roll-outs at once, F devices.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tasks.operations.fleet.decision import TelemetrySums

Values = NDArray[np.float64]
DAY = 24


class DeviceKind(NamedTuple):
    """share: of the fleet. latency_ms: median of a request; spread: standard deviation of ln(latency) over requests.
    confidence, accuracy: means.
    """

    name: str
    share: float
    latency_ms: float
    spread: float
    confidence: float
    accuracy: float


KINDS = (
    DeviceKind("phone", 0.4, 12.0, 0.30, 0.82, 0.88),
    DeviceKind("older phone", 0.25, 25.0, 0.40, 0.80, 0.87),
    DeviceKind("camera", 0.2, 40.0, 0.20, 0.76, 0.85),
    DeviceKind("gateway", 0.1, 6.0, 0.25, 0.84, 0.89),
    DeviceKind("board", 0.05, 90.0, 0.50, 0.78, 0.86),
)
SLACK = 2.0
"""Budget of a request over its kind's median latency."""
ZONES_H = (0, 3, 8)
FAULTY = 0.05
LABELLING, LABELS = 0.5, 0.05
"""Share of devices that ask the largest SubNet, too, and of their requests for which they do."""


class BundleChange(NamedTuple):
    """What a bundle changes on the devices that have it. latency: factor. confidence, accuracy: points / 100, lost where
    positive. silent: share of windows that are not told. kind: the only one that is changed; empty: all.
    """

    latency: float = 1.0
    confidence: float = 0.0
    accuracy: float = 0.0
    silent: float = 0.0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class FleetNoise:
    """Standard deviations, and how much of a deviation is there an hour later.

    load: of ln(latency) by other work, hour by hour; day: amplitude over a day. content: of the mean confidence and accuracy
    of a device's inputs, which change slowly. between: of devices of one kind. hour: what no hour has in common with the next.
    """

    load: float = 0.10
    load_kept: float = 0.9
    day: float = 0.15
    content: float = 0.015
    content_kept: float = 0.98
    between: float = 0.10
    hour: float = 0.03


class SimulatedFleet:
    """R fleets of F devices, with states that go on from window to window."""

    def __init__(self, rollouts: int, kind_F: NDArray[np.int64], rng: np.random.Generator) -> None:
        self._rng, self._noise = rng, FleetNoise()
        shape = (rollouts, len(kind_F))
        of = {name: np.array([getattr(kind, name) for kind in KINDS])[kind_F] for name in DeviceKind._fields[2:]}
        noise = self._noise
        self.kind_F = kind_F
        self._log_ms = np.log(of["latency_ms"]) + noise.between * rng.normal(size=shape)
        self._log_budget_F, self._spread_F = np.log(of["latency_ms"] * SLACK), of["spread"]
        self._confidence = of["confidence"] + 0.3 * noise.between * rng.normal(size=shape)
        self._accuracy = of["accuracy"] + 0.3 * noise.between * rng.normal(size=shape)
        self._rate = 200 * np.exp(rng.normal(size=shape))
        self._labels = np.where(rng.random(shape) < LABELLING, LABELS, 0.0)
        self._zone = rng.choice(ZONES_H, size=shape)
        self._faulty = rng.random(shape) < FAULTY
        self._load = noise.load * rng.normal(size=shape)
        self._content = noise.content * rng.normal(size=shape)
        self._hour = int(rng.integers(DAY))

    def window(self, treated: NDArray[np.bool_], change: BundleChange) -> TelemetrySums:
        """The sums of the next hour (R, F). treated: devices that have the bundle."""
        rng, noise, shape = self._rng, self._noise, self._load.shape
        self._load = _next(self._load, noise.load, noise.load_kept, rng)
        self._content = _next(self._content, noise.content, noise.content_kept, rng)
        self._hour += 1
        day = np.sin(2 * np.pi * (self._hour + self._zone) / DAY)
        changed = treated & (np.array([change.kind in ("", kind.name) for kind in KINDS])[self.kind_F])
        requests = rng.poisson(self._rate * (1 + 0.5 * day)).astype(float)
        log_ms = self._log_ms + self._load + noise.day * day + noise.hour * rng.normal(size=shape)
        log_ms = log_ms + np.log(change.latency) * changed
        root = np.sqrt(np.maximum(requests, 1))
        told_ms = log_ms + self._spread_F * rng.normal(size=shape) / root
        in_time = rng.binomial(requests.astype(int), ndtr((self._log_budget_F - log_ms) / self._spread_F))
        sure = self._confidence + self._content + 0.01 * day - change.confidence * changed
        sure = sure + 0.2 * rng.normal(size=shape) / root
        labelled = rng.binomial(requests.astype(int), self._labels)
        right = np.clip(self._accuracy + self._content - change.accuracy * changed, 0, 1)
        agreed = rng.binomial(labelled, right)
        sums = (requests, requests * told_ms, in_time, requests * np.clip(sure, 0, 1), labelled, agreed, np.ones(shape))
        told = TelemetrySums(*(np.asarray(one, dtype=float) for one in sums))
        heard = rng.random(shape) >= 0.02 + change.silent * changed
        return TelemetrySums(*(one * heard for one in self._with_faults(told)))

    def _with_faults(self, told: TelemetrySums) -> TelemetrySums:
        """Some devices tell latencies by a wrong unit, or counts that have nothing to do with their requests."""
        rng, shape, bad = self._rng, self._load.shape, self._faulty
        count = told.requests
        return told._replace(
            log_latency=np.where(bad, told.log_latency + count * rng.uniform(-7, 7, shape), told.log_latency),
            in_time=np.where(bad, count * rng.random(shape), told.in_time),
            confidence=np.where(bad, count * rng.random(shape), told.confidence),
            agreed=np.where(bad, told.labelled * rng.random(shape), told.agreed),
        )


def _next(state: Values, deviation: float, kept: float, rng: np.random.Generator) -> Values:
    """The next values of autoregressions of order one that keep their standard deviation."""
    return kept * state + deviation * np.sqrt(1 - kept**2) * rng.normal(size=state.shape)

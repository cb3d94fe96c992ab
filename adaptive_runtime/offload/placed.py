"""A SubNet over several devices: open on the coordinator, connected to other devices, with expected latencies.

A bundle has several of them, which share their links; a folder of `autotailor partition … partition.plans=FOLDER` has one.

[The choice at run time](docs/runtime_choice.md#rows-over-levels) says how they are chosen. The expected latency follows
from current link measures, the load on the coordinator, and the runs so far. For one request, a SubNet over several
devices is the runtime of a chain.

Legend: N samples, C channels, H height, W width, K classes.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.closing import Closing
from adaptive_runtime.base.devices import COORDINATOR, DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError, NotBackError
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainFormat
from adaptive_runtime.offload.links import MeasuredLink, SharedLink
from adaptive_runtime.offload.links.measures import WeightedMean
from adaptive_runtime.offload.split import (
    PLANS_FILE,
    EnvelopePlacements,
    PlacementPlans,
    PlannedPlacement,
    ReplanRules,
    SendingPlan,
    SplitAnswer,
    SplitNetwork,
    SplitOptions,
    SplitSubNet,
)
from adaptive_runtime.offload.split.plans import coded_share
from adaptive_runtime.offload.split.replanning import ms_per_byte
from adaptive_runtime.offload.split.segments import CoordinatorSegments

HALF_S = 10.0
"""Time without a run after which the influence of earlier runs has halved."""


class ExpectedPlacement(NamedTuple):
    """Mean and deviation of a request's latency [ms], the plan to send it with, and a description of plan and links."""

    mean_ms: float
    deviation_ms: float
    sent: SendingPlan
    described: str

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
    described = f"{found.plan.line}; {known}"
    return ExpectedPlacement(found.latency_ms * mean, sqrt(variance), found, described)


def _variance(found: SendingPlan, links: Mapping[str, MeasuredLink], slow_deviation: float) -> float:
    """Variance of the latency [ms²], from the spreads of links and of the coordinator's slow-down."""
    share = coded_share(found.coding)
    variance = (found.plan.coordinator_ms * slow_deviation) ** 2
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


WAITED = 0.95
"""Share of a budget that the coordinator waits at most: the rest is for returning the answer of the fallback."""


class FallbackTimes(NamedTuple):
    """takes_ms: upper duration of a fallback. usual_ms: duration of the run over devices beyond which it is unusually late."""

    takes_ms: float
    usual_ms: float

    def after_ms(self, budget_ms: float) -> float:
        """Start of the fallback: in time, but not before the run is later than usual, if that is within the budget."""
        latest_ms = max(0.0, budget_ms - self.takes_ms)
        return latest_ms if self.usual_ms >= WAITED * budget_ms else max(latest_ms, self.usual_ms)


class PlacedRun:
    """One pending run. done: called once with its answer, when it is used or, after `leave`, when it arrives.

    leave: called when nobody waits for the answer any more.
    """

    __slots__ = ("_done", "_leave", "future")

    def __init__(
        self,
        future: "Future[SplitAnswer]",
        done: Callable[[SplitAnswer], None],
        leave: Callable[["Future[SplitAnswer]"], None],
    ) -> None:
        self.future, self._done, self._leave = future, done, leave

    def answer(self, wait_s: float | None) -> SplitAnswer:
        """The answer.

        NotBackError: it did not come within `wait_s`; None: wait for it. AdaptiveError: the coordinator has failed.
        """
        try:
            found = self.future.result(wait_s)
        except TimeoutError:
            raise NotBackError from None
        self._done(found)
        return found

    def leave(self) -> None:
        """Stop waiting; a late answer is still used to learn about the devices."""
        self.future.add_done_callback(lambda found: None if found.exception() else self._done(found.result()))
        self._leave(self.future)


class NetworkRuntime:
    """Runs samples over several devices. batch: samples per run. devices: devices that have run segments.

    begin: starts one run within a time [ms]. within_ms: rest of the request's budget, shared by the runs of its samples; None:
    no budget. fallback: times of a fallback on the coordinator for all samples; None: no fallback. A run waits until the
    fallback has to start, and gives up once (NotBackError). The second call waits as long as it takes.
    """

    def __init__(
        self,
        batch: int,
        begin: Callable[[Array, float | None], PlacedRun],
        within_ms: float | None,
        samples: int,
        fallback: FallbackTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch, self._begin, self._clock = batch, begin, clock
        start_s = clock()
        self._until_s = None if within_ms is None else start_s + within_ms * 1e-3
        self._gives_up_s: float | None = None
        if fallback is not None and within_ms is not None and samples <= batch:
            self._gives_up_s = start_s + fallback.after_ms(within_ms) * 1e-3
        self.until_s = start_s + WAITED * (within_ms or 0.0) * 1e-3
        """Time until which the answer of a fallback is held back."""
        self._away: PlacedRun | None = None
        self._runs_left = -(-samples // batch)
        self._devices: dict[str, None] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Device names in the order of their first use."""
        return tuple(self._devices)

    def start(self, x_NCHW: Array) -> "_NetworkRun":
        """Start a run of one batch (N, C, H, W)."""
        return _NetworkRun(self, x_NCHW)

    def run(self, x_NCHW: Array) -> Array:
        """The answer of one batch, within its share of the remaining time. NotBackError: a fallback has to start."""
        run, wait_s = self._away, None
        if run is None:
            run = self._begin(x_NCHW, self._share_ms)
            if self._gives_up_s is not None:
                wait_s = max(0.0, self._gives_up_s - self._clock())
        try:
            found = run.answer(wait_s)
        except NotBackError:
            self._away = run
            raise
        self._runs_left -= 1
        self._devices |= dict.fromkeys(found.devices)
        return found.answer

    @property
    def away(self) -> "Future[SplitAnswer]":
        """The future answer of the run that gave up."""
        assert self._away is not None, "it has given up"
        return self._away.future

    def leave(self) -> None:
        """Stop waiting for the run that gave up."""
        if self._away is not None:
            self._away.leave()

    @property
    def _share_ms(self) -> float | None:
        """Time for the next run [ms]; None: no budget."""
        if self._until_s is None:
            return None
        return max(0.0, self._until_s - self._clock()) * 1e3 / max(1, self._runs_left)

    def close(self) -> None:
        """Do nothing: the network stays open for other requests."""


class _NetworkRun:
    __slots__ = ("_runtime", "_x")

    def __init__(self, runtime: NetworkRuntime, x_NCHW: Array) -> None:
        self._runtime, self._x = runtime, x_NCHW

    def next(self) -> Array:
        """The SubNet's own answer (N, K)."""
        return self._runtime.run(self._x)

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        """Not possible with a single exit."""
        raise AssertionError("a whole SubNet has one exit")


def check_names(devices: Iterable[str], known: Collection[str], where: str) -> None:
    """AdaptiveError: no plan names a device. where: the place of the plans."""
    for name in devices:
        if name not in known:
            raise AdaptiveError(f"device '{name}'", f"no plan of the {where} names it", allowed=", ".join(known))


PATIENCE = 2.0
"""The coordinator waits for other devices at least this multiple of their expected duration."""
LEAST_DEADLINE_MS = 1e-3


@dataclass(frozen=True, slots=True)
class SharedDevices:
    """Shared measures of SubNets over the same devices. Several threads may use it.

    ratios: of the runs so far, by the devices of the plan besides the coordinator. links: by device.
    """

    ratios: defaultdict[frozenset[str], RunRatio] = field(default_factory=lambda: defaultdict(RunRatio))
    links: defaultdict[str, SharedLink] = field(default_factory=lambda: defaultdict(SharedLink))

    @property
    def version(self) -> int:
        """Changes after each measurement."""
        return sum(link.version for link in self.links.values()) + sum(one.runs for one in tuple(self.ratios.values()))


class Prediction(NamedTuple):
    """The plan in use.

    plan_ms: its predicted latency; None: a device of it is out. coordinator_ms: that of the coordinator alone.
    """

    plan: PlannedPlacement
    plan_ms: float | None
    coordinator_ms: float


class PlacedSubNet(Closing):
    """One SubNet. It runs by the plan of `choice` that is currently fastest; the coordinator is the fallback.

    devices: by the names of the plans; a device of the plans without an address never comes in. coordinator: runs segments
    in this process; None: the runtime of their files. shared: measures of SubNets over the same devices; None: no other
    SubNets exist. Close it after use.
    """

    def __init__(
        self,
        split: SplitSubNet,
        choice: EnvelopePlacements,
        devices: Mapping[str, DeviceAddress],
        options: SplitOptions,
        coordinator: CoordinatorSegments | None = None,
        shared: SharedDevices | None = None,
    ) -> None:
        self.split, self.choice, self._options = split, choice, options
        self._coordinator = CoordinatorSegments(split) if coordinator is None else coordinator
        self.shared = SharedDevices() if shared is None else shared
        self.network = SplitNetwork(split, devices, self.choice, options, self._coordinator, self.shared.links)
        self._last = len(split.subnet.segments) - 1
        self._batch = split.subnet.shapes[split.subnet.input][0]
        self._expected: ExpectedPlacement | None = None

    @property
    def predicted(self) -> Prediction:
        """The plan of the latest request, predicted from the current links."""
        number, found_ms = self.choice.number, self.choice.latencies_ms(self.network.links)
        return Prediction(self.choice.plans.plans[number], found_ms.get(number), found_ms[0])

    def expected(self, slow_down: float, deviation: float) -> ExpectedPlacement | None:
        """Expected latency of a request for the coordinator's slow-down and its deviation.

        None: no other device can take part.
        """
        links = self.network.links
        self.choice.known_slow_down = slow_down
        found = self.choice.sending(links, slow_down)
        if found is None:
            self._expected = None
        else:
            self._expected = expected(found, links, deviation, self.shared.ratios[frozenset(found.plan.peers)].now)
        return self._expected

    def runs(self, within_ms: float | None, samples: int, fallback_ms: float | None = None) -> NetworkRuntime:
        """The runtime for one request of so many samples. within_ms: rest of its budget; None: no budget.

        fallback_ms: duration of a fallback on the coordinator, for which a run gives up in time (NotBackError); None: no
        fallback.
        """
        known, times = self._expected, None
        if fallback_ms is not None:
            times = FallbackTimes(fallback_ms, 0.0 if known is None else known.mean_ms + known.deviation_ms)
        return NetworkRuntime(self._batch, self._begin, within_ms, samples, times)

    @property
    def missing(self) -> str:
        """The reason why no other device takes part, in words."""
        states = self.network.states.items()
        lines = (f"{name} is {state}" + (f" ({why})" if why else "") for name, (state, why) in states if state != "in")
        return ", ".join(lines) or "nothing is known of its links, or it is not heard any more"

    def close(self) -> None:
        """End the connections."""
        self.network.close()

    def _begin(self, x_NCHW: Array, within_ms: float | None) -> PlacedRun:
        """Start a run; it updates the expectations only if it followed a plan over other devices."""
        known = self._expected

        def learn(answer: SplitAnswer) -> None:
            if (
                known is not None
                and answer.on_coordinator is None
                and frozenset(answer.devices) - {COORDINATOR} == known.peers
            ):
                planned_ms = self.choice.later_ms(known.sent, self.network.links)  # with the links after this run
                self.shared.ratios[known.peers].add(answer.latency_ms / planned_ms)

        future = self.network.submit(x_NCHW, self._deadline_ms(within_ms, known))
        return PlacedRun(future, learn, self.network.leave)

    def _deadline_ms(self, within_ms: float | None, known: ExpectedPlacement | None) -> float:
        """Time by which the coordinator finishes the request if other devices have not answered.

        The coordinator waits at least twice their usual duration, even if it is late then: earlier they are not at fault.
        """
        options = self._options
        deviations = options.deviations
        alone_ms = self._coordinator.predicted_ms(0, self._last, deviations) + options.spare_ms
        usual_ms = 0.0 if known is None else PATIENCE * known.mean_ms + deviations * known.deviation_ms
        return max(within_ms or 0.0, alone_ms + usual_ms, LEAST_DEADLINE_MS)


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A SubNet that may be split, and its plans."""

    split: SplitSubNet
    plans: PlacementPlans

    @classmethod
    def open(
        cls,
        folder: str | Path,
        segments: str = SEGMENTS_FILE,
        plans: str = PLANS_FILE,
        coordinator: ChainFormat = "onnx",
    ) -> "PlannedSplit":
        """Read and check both files of a folder. coordinator: as in `SplitSubNet.open`.

        AdaptiveError in one line: a file is missing, damaged, or of another SubNet.
        """
        split = SplitSubNet.open(folder, segments, coordinator)
        return cls(split, PlacementPlans.read(Path(folder) / plans, split))

    def placed(
        self,
        devices: Mapping[str, DeviceAddress],
        options: SplitOptions | None = None,
        rules: ReplanRules | None = None,
    ) -> PlacedSubNet:
        """The open SubNet, which the coordinator runs alone if that is faster.

        AdaptiveError: no plan names a device, or an address cannot be used.
        """
        check_names(devices, self.plans.peers, "folder")
        options = options or SplitOptions()
        return PlacedSubNet(self.split, EnvelopePlacements(self.plans, rules, coding=options.coding), devices, options)

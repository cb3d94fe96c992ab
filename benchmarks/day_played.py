"""A scenario with real processes: the run time's own parts decide and serve, other processes make the load, a relay the link.

Every system serves every request in turn, so that all meet the same load. At home a request is run `slower` times, and so is
each segment of a split there, which makes this machine so many times slower than it is; the other device, a process behind a
relay, runs its segments once.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import adaptive_runtime
from adaptive_runtime import DeployedModel
from adaptive_runtime.adapting import BundleVariants, LoadEstimate
from adaptive_runtime.adapting.adaptation import context_of
from adaptive_runtime.chains import ChainManifest
from adaptive_runtime.choice import (
    ByRules,
    ChoiceLimits,
    ChoiceState,
    DecisionInputs,
    DeviceContext,
    Switching,
    VariantLookUp,
    parse_rules,
)
from adaptive_runtime.links import MeasuredLink
from adaptive_runtime.sensing import SensedState, Sensing, device_sensors, load_index
from adaptive_runtime.simulation import LevelRows, PlacedRows, PlayedScenario, RequestEnds, SimulatedOutcome
from adaptive_runtime.split import PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from adaptive_runtime.split.home import HomeSegments, Loaded
from adaptive_runtime.traces import LoadTrace, Scenario, Stress
from benchmarks.split_faults import FaultyDevice
from tests.runtime.device_files import write
from tests.threads import beside

SHAPED_EVERY_S = 0.25
START_S = 60.0
BATTERY = "sys/class/power_supply/BAT0"
KIB_PER_MIB = 1024
Images = NDArray[np.float32]


class SlowerHome(HomeSegments):
    """Segments at home that run so many times each."""

    def __init__(self, split: SplitSubNet, slower: int) -> None:
        self.slower = slower
        super().__init__(split)

    def loaded(self, split: SplitSubNet) -> list[Loaded]:
        return [partial(self._repeated, one) for one in super().loaded(split)]

    def _repeated(self, segment: Loaded, inputs: Sequence[Images]) -> Sequence[Images]:
        for _ in range(self.slower - 1):
            segment(inputs)
        return segment(inputs)


class GivenPlan:
    """A `PlacementChoice` that follows the plan it is given."""

    reason, coding = "it was given", None

    def __init__(self, plan: PlacedSegments) -> None:
        self.plan = plan

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The plan; home runs it where a device of it is not in."""
        return self.plan

    def ran_at_home(self, first: int, took_ms: object, handed_ms: float = 0.0) -> None:
        """The plan does not follow times."""

    def ran_elsewhere(self, handed_ms: float, coding: str) -> None:
        """Nor these."""


@dataclass(slots=True)
class Known:
    """What sensing has told last."""

    device: DeviceContext | None = None
    load: float | None = None

    def tell(self, state: SensedState) -> None:
        self.device, self.load = context_of(state), load_index(state)


class ServingRows:
    """Rows over all levels that really serve. splits: of SubNets that another device may run, by their digest."""

    def __init__(
        self,
        model: DeployedModel,
        rows: LevelRows,
        splits: Mapping[str, tuple[SplitNetwork, GivenPlan]],
        slower: int,
    ) -> None:
        self.model, self.rows, self.slower = model, rows, slower
        self._splits = splits
        manifest = model.pool.bundle.manifest
        self._variants = BundleVariants.of(manifest, *manifest.known_formats).variants

    @property
    def unserved(self) -> frozenset[int]:
        """Placed rows of SubNets that no other device may run."""
        levels = self.rows.levels
        return frozenset(row for row in self.rows.placed if levels[row].subnet not in self._splits)

    def links(self) -> dict[str, MeasuredLink]:
        """Of the devices that are in for all SubNets."""
        each = [network.links for network, _ in self._splits.values()]
        known = set.intersection(*(set(one) for one in each)) if each else set[str]()
        return {name: each[0][name] for name in known if each[0][name].round_trip_ms is not None}

    def serve(self, row: int, x_NCHW: Images, left_ms: float) -> float:
        """Milliseconds of one request by a row."""
        start_s = time.perf_counter()
        plan = self.rows.placed.get(row)
        if plan is None:
            one = self._variants[row]
            self.model.use(one.digest, one.exit, early=one.early, format=one.form)
            for _ in range(self.slower):
                self.model.infer(x_NCHW)
        else:
            network, given = self._splits[self.rows.levels[row].subnet]
            given.plan = PlacedSegments(devices=plan.devices)
            network.infer(x_NCHW, left_ms)
        return (time.perf_counter() - start_s) * 1e3


@dataclass(slots=True)
class PlayedSystem:
    """A system that decides among some rows before each request, and what became of its requests."""

    rows: LevelRows
    placed: PlacedRows
    others: frozenset[int]
    limits: ChoiceLimits
    rules: str
    policy: ByRules = field(init=False)
    estimate: LoadEstimate = field(init=False)
    state: ChoiceState = field(default_factory=ChoiceState)
    served: list[tuple[int, float]] = field(default_factory=list)
    switches: int = 0

    def __post_init__(self) -> None:
        self.policy = ByRules(parse_rules(self.rules), VariantLookUp(self.rows.table), Switching)
        self.estimate = LoadEstimate(self.rows.table)

    def request(self, serving: ServingRows, known: Known, x_NCHW: Images) -> None:
        """Decide, serve, and learn from it."""
        now_s, links, before = time.monotonic(), serving.links(), self.state.running
        factors = self.estimate.factors(now_s, known.load, self.limits.quantile)
        inputs = DecisionInputs(
            now_s=now_s,
            limits=self.limits,
            factors=self.placed.factors(factors, links),
            ratio=self.estimate.ratio,
            load=known.load,
            without=self.others | self.placed.unable(set(links)),
            device=self._beside(known.device, before),
        )
        self.state, decision = self.policy.decide(self.state, inputs)
        self.switches += before is not None and decision.variant != before
        took_ms = serving.serve(decision.variant, x_NCHW, self.limits.budget_ms)
        self.served.append((decision.variant, took_ms))
        if decision.variant not in self.rows.placed:
            self.estimate.observe([decision.variant], took_ms, time.monotonic(), known.load)

    def _beside(self, device: DeviceContext | None, running: int | None) -> DeviceContext | None:
        """The device with the memory that this system leaves, as if it ran alone."""
        memory_mib = self.rows.table.memory_mib
        if device is None or device.memory_available_mib is None or running is None or memory_mib is None:
            return device
        left_mib = max(0.0, device.memory_available_mib - memory_mib[running])
        return device.model_copy(update={"memory_available_mib": left_mib})

    def outcome(self, duration_s: float) -> SimulatedOutcome:
        """Of all requests so far."""
        rows_R = np.array([row for row, _ in self.served])
        took_ms_R = np.array([took_ms for _, took_ms in self.served])
        in_time_R = took_ms_R <= self.limits.budget_ms
        return SimulatedOutcome(
            ends_R=np.where(in_time_R, RequestEnds.IN_TIME.value, RequestEnds.LATE.value),
            accuracy_R=self.rows.table.accuracy_V[rows_R],
            latency_ms_R=took_ms_R,
            duration_s=duration_s,
            switches=self.switches,
            rows_R=rows_R,
        )


def split_subnets(exports: Path) -> dict[str, SplitSubNet]:
    """SubNets with segments of their own in an export's folder, by digest."""
    found = {}
    for file in sorted(exports.glob("*.onnx.segments/segments.json")):
        digest = ChainManifest.read(file).digest
        found[digest] = SplitSubNet.open(file.parent)
    return found


def told(scenario: Scenario, time_s: float, root: Path) -> None:
    """Battery and memory of a moment, in the files that sensors read; the memory is what other programs leave."""
    moment = scenario.at(time_s)
    total_kib, left_kib = (round(mib * KIB_PER_MIB) for mib in (scenario.memory_total_mib, moment.memory_mib))
    memory = f"MemTotal: {total_kib} kB\nMemAvailable: {left_kib} kB"
    status = "Charging" if moment.phase.charging else "Discharging"
    files = {"type": "Battery", "status": status, "capacity": round(100 * moment.battery)}
    write(root, {"proc/meminfo": memory, **{f"{BATTERY}/{name}": value for name, value in files.items()}})


class Surrounding:
    """A thread that has the scenario happen: files of sensors and the links."""

    def __init__(self, scenario: Scenario, root: Path, peers: Mapping[str, FaultyDevice]) -> None:
        self.scenario, self.root, self.peers = scenario, root, peers
        self.start_s, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> "Surrounding":
        self._happen(0.0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(SHAPED_EVERY_S):
            self._happen(time.monotonic() - self.start_s)

    def _happen(self, time_s: float) -> None:
        told(self.scenario, time_s, self.root)
        links = self.scenario.at(time_s).phase.peers
        for name, device in self.peers.items():
            link = links.get(name)
            if link is None:
                device.relay.cut()
                continue
            device.relay.mend()
            device.relay.delay_ms = link.round_trip_ms / 2
            device.relay.mbps = {"up": link.up_mbps, "down": link.down_mbps}


@contextmanager
def serving_rows(
    bundle: Path, played: PlayedScenario, peers: Mapping[str, FaultyDevice], slower: int
) -> Iterator[ServingRows]:
    """The bundle's model, and the SubNets that the other device may run, connected."""
    with ExitStack() as stack:
        model = stack.enter_context(adaptive_runtime.load(bundle))
        splits = {}
        for digest, split in split_subnets(bundle.parent).items():
            given = GivenPlan(PlacedSegments(devices=("home",) * len(split.subnet.segments)))
            addresses = {name: device.address for name, device in peers.items()}
            network = SplitNetwork(split, addresses, given, SplitOptions(coding="int8"), SlowerHome(split, slower))
            stack.callback(network.close)
            splits[digest] = (network, given)
        yield ServingRows(model, played.rows, splits, slower)


def play(
    bundle: Path,
    played: PlayedScenario,
    systems: Mapping[str, frozenset[int]],
    work: Path,
    *,
    slower: int,
    processes: tuple[int, int],
) -> dict[str, SimulatedOutcome]:
    """What became of all requests of the scenario, by system. processes: that compute, that stream through memory."""
    scenario, trace = played.scenario, played.requests.trace
    root = work / "device"
    (root / "proc").mkdir(parents=True)
    (root / "proc/stat").symlink_to("/proc/stat")
    known, cpu, bandwidth = Known(), *processes
    with ExitStack() as stack:
        peers = {name: FaultyDevice() for name in scenario.peers}
        for device in peers.values():
            stack.callback(device.close)
        serving = stack.enter_context(serving_rows(bundle, played, peers, slower))
        images = images_of(serving.model)
        found = systems_of(played, systems, serving.unserved)
        stress = stack.enter_context(Stress(cpu_processes=cpu, bandwidth_processes=bandwidth))
        stack.enter_context(Surrounding(scenario, root, peers))
        stack.enter_context(Sensing(device_sensors(root), tell=known.tell))
        follow(stress, trace, stack)
        start_s = time.monotonic()
        for number, arrival_s in enumerate(trace.arrivals_s):
            time.sleep(max(0.0, start_s + arrival_s - time.monotonic()))
            names = list(found)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                found[name].request(serving, known, images[number % len(images)][None])
        return {name: one.outcome(scenario.duration_s) for name, one in found.items()}


def systems_of(
    played: PlayedScenario, systems: Mapping[str, frozenset[int]], unserved: frozenset[int]
) -> dict[str, PlayedSystem]:
    """Systems by the rows that they may run, without those that nothing serves."""
    rows, everything = played.rows, frozenset(range(len(played.rows.table)))
    placed = PlacedRows(rows, played.scenario.peers)
    return {
        name: PlayedSystem(rows, placed, everything - may_run | unserved, played.limits, played.policy)
        for name, may_run in systems.items()
    }


def follow(stress: Stress, trace: LoadTrace, stack: ExitStack) -> None:
    """The load of a trace in a thread, until the stack is left."""
    over = threading.Event()
    stack.enter_context(beside(partial(stress.follow, trace, over.is_set), over=over))


def images_of(model: DeployedModel) -> Images:
    """Images of the bundle's calibration sample, in the size that all SubNets take (N, C, H, W)."""
    sample = model.pool.bundle.calibration()
    assert sample is not None, "an export writes a calibration sample"
    (images,) = sample.inputs.values()
    return images

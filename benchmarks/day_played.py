"""A scenario with real processes: the run time's own loop decides, other processes make the load, a relay the link.

Every system serves every request, so that all meet the same load, and has a loop of its own
(`adaptive_runtime.model.adapting`), which hears the same samples of the device. The systems' requests are spread over the
time to the next arrival: right after each other they would be one long run, which the scheduler interrupts for other
programs. On the coordinator a request is run `slower` times, and so is each segment of a split there, which makes this
machine so many times slower than it is; the other device, a process behind a relay, runs its segments once. The coordinator
has one core of this machine, with all burners; the other device and the relay, which are elsewhere in the scenario, have
the other cores.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

import adaptive_runtime
from adaptive_runtime import AdaptingOptions, DeployedModel
from adaptive_runtime.base.errors import NotBackError
from adaptive_runtime.base.process import run_at
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.estimate import FallbackRow, ServedRun
from adaptive_runtime.model.serving import Fallbacks
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.placed import PlacedSubNet, SharedDevices
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.offload.split import EnvelopePlacements, SplitOptions, SplitSubNet
from adaptive_runtime.offload.split.segments import CoordinatorSegments, Loaded
from adaptive_runtime.policy import ChoiceLimits, RequestProgress
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.running import SWITCH_S
from adaptive_runtime.state.sensing import SensedState, Sensing, device_sensors
from adaptive_runtime.state.traces import LoadTrace, PhaseLink, Scenario, Stress
from benchmarks.day_rows import opened_plans
from benchmarks.simulation import LevelRows, PlayedScenario, RequestEnds, SimulatedOutcome
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import serving
from tests.support.links.relay import RelayProcess
from tests.support.runtime.device_files import write
from tests.support.threads import beside

SHAPED_EVERY_S = 0.25
HEARD_APART_S = 0.05
"""Systems hear a sample so long after each other: one device has one of them, whose work does not add up."""
START_S = 60.0
"""The other devices have so long to load all SubNets before the scenario begins."""
BATTERY = "sys/class/power_supply/BAT0"
KIB_PER_MIB = 1024
NO_ROW = -1
Images = NDArray[np.float32]


class SlowerCoordinator(CoordinatorSegments):
    """Segments on the coordinator that run so many times each."""

    def __init__(self, split: SplitSubNet, slower: int) -> None:
        self.slower = slower
        super().__init__(split)

    def loaded(self, split: SplitSubNet) -> list[Loaded]:
        return [partial(self._repeated, one) for one in super().loaded(split)]

    def _repeated(self, segment: Loaded, inputs: Sequence[Images]) -> Sequence[Images]:
        for _ in range(self.slower - 1):
            segment(inputs)
        return segment(inputs)


class PlayedRequest(NamedTuple):
    """row: that has answered. besides: another one that ran for it. runs: of which the loop is told."""

    row: int
    besides: int
    runs: list[ServedRun]


class ServingRows:
    """Rows over all levels that really serve. placed: SubNets over other devices."""

    def __init__(self, model: DeployedModel, rows: LevelRows, placed: PlacedSubNets, slower: int) -> None:
        self.model, self.placed, self.slower = model, placed, slower
        self._stand_ins, self._one_on_coordinator = Fallbacks(), threading.Lock()
        manifest = model.pool.bundle.manifest
        on_coordinator = BundleVariants.of(manifest, *manifest.known_formats).variants
        over = (Variant(rows.levels[row].subnet, placed=True) for row in sorted(rows.placed))
        self.variants = BundleVariants((*on_coordinator, *over), rows.table)

    def wait_for(self, devices: Set[str]) -> None:
        """Until all SubNets over these devices are connected with them. SystemExit: they are not within `START_S`, each."""
        networks = [one.network for one in self.placed.subnets.values()]
        if not all(network.wait_for(*devices, timeout_s=START_S) for network in networks if devices):
            raise SystemExit(f"{', '.join(devices)}: not connected within {START_S:g} s")

    def load(self, x_NCHW: Images) -> None:
        """All rows on the coordinator, as a model that adapts loads them beside its requests."""
        for row, one in enumerate(self.variants.variants):
            if not one.placed:
                self.serve(row, x_NCHW, math.inf)

    def serve(self, row: int, x_NCHW: Images, left_ms: float, fallback: FallbackRow | None = None) -> PlayedRequest:
        """One request by a row, or by a fallback for one over devices, as a model serves it. left_ms: of its budget."""
        one = self.variants.variants[row]
        if not one.placed:
            return PlayedRequest(row, NO_ROW, [self._on_coordinator(row, x_NCHW)])
        start_s, besides = time.perf_counter(), NO_ROW
        takes_ms = None if fallback is None else fallback.takes_ms
        over = self.placed.subnets[one.digest].runs(left_ms, len(x_NCHW), takes_ms)
        try:
            over.run(x_NCHW)
        except NotBackError:
            assert fallback is not None, "runs wait where there is none"
            run_by = partial(self._on_coordinator, fallback.row, x_NCHW)
            found = self._stand_ins.beside(over.away, over.until_s, run_by)
            if found is not None:
                over.leave()
                gave_up = ServedRun(one, (), (time.perf_counter() - start_s) * 1e3, away=True)
                return PlayedRequest(fallback.row, row, [found, gave_up])
            over.run(x_NCHW)
            besides = fallback.row
        return PlayedRequest(row, besides, [ServedRun(one, (), (time.perf_counter() - start_s) * 1e3)])

    def _on_coordinator(self, row: int, x_NCHW: Images) -> ServedRun:
        one = self.variants.variants[row]
        with self._one_on_coordinator:
            self.model.use(one.digest, one.exit, early=one.early, format=one.form)
            start_s = time.perf_counter()
            for _ in range(self.slower):
                found = self.model.infer(x_NCHW)
            return ServedRun(one, found.exits, (time.perf_counter() - start_s) * 1e3)

    def close(self) -> None:
        """Wait for the fallbacks that run."""
        self._stand_ins.close()


class PlayedSystem:
    """A system that decides among some rows before each request, and what became of its requests.

    decided_ms: what each decision took.
    """

    def __init__(self, serving: ServingRows, others: frozenset[int], limits: ChoiceLimits, policy: str) -> None:
        self._serving, self._others, self._limits = serving, others, limits
        options = AdaptingOptions(quantile=limits.quantile, rules=policy)
        self._loop = Adaptation(serving.variants, limits, options, placed=serving.placed)
        self._running: int | None = None
        self._switches = 0
        self._served: list[tuple[int, int, float]] = []
        self.decided_ms: list[float] = []

    def request(self, x_NCHW: Images) -> None:
        """Decide, serve, and learn from it."""
        start_s, before = time.perf_counter(), self._running
        decision = self._loop.choose(without=self._others)
        self.decided_ms.append((time.perf_counter() - start_s) * 1e3)
        self._running = decision.variant
        placed = self._serving.variants.variants[decision.variant].placed
        fallback = self._loop.fallback() if placed else None
        left_ms = self._limits.budget_ms - (time.perf_counter() - start_s) * 1e3
        found = self._serving.serve(decision.variant, x_NCHW, left_ms, fallback)
        took_ms = (time.perf_counter() - start_s) * 1e3
        self._switches += before is not None and decision.variant != before
        self._served.append((found.row, found.besides, took_ms))
        self._loop.served(found.runs, RequestProgress().after(decision.effective_ms, took_ms))

    def sensed(self, state: SensedState) -> None:
        """A sample of the device, with the memory that this system leaves, as if it ran alone."""
        table, free_mib, running = self._serving.variants.table, state.memory_available_mib, self._running
        if free_mib is not None and running is not None and table.memory_mib is not None:
            state = state.model_copy(update={"memory_available_mib": max(0.0, free_mib - table.memory_mib[running])})
        self._loop.sensed(state)

    def outcome(self, duration_s: float) -> SimulatedOutcome:
        """Of all requests so far."""
        rows_R, besides_R = (np.array(rows) for rows in tuple(zip(*self._served, strict=True))[:2])
        took_ms_R = np.array([took_ms for *_, took_ms in self._served])
        in_time_R = took_ms_R <= self._limits.budget_ms
        return SimulatedOutcome(
            ends_R=np.where(in_time_R, RequestEnds.IN_TIME.value, RequestEnds.LATE.value),
            accuracy_R=self._serving.variants.table.accuracy_V[rows_R],
            latency_ms_R=took_ms_R,
            duration_s=duration_s,
            switches=self._switches,
            rows_R=rows_R,
            besides_R=besides_R,
        )


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

    def __init__(self, scenario: Scenario, root: Path, peers: Mapping[str, "OtherDevice"]) -> None:
        self.scenario, self.root, self.peers = scenario, root, peers
        self._start_s, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._happen(0.0)

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(SHAPED_EVERY_S):
            self._happen(time.monotonic() - self._start_s)

    def _happen(self, time_s: float) -> None:
        told(self.scenario, time_s, self.root)
        links = self.scenario.at(time_s).phase.peers
        for name, device in self.peers.items():
            device.has(links.get(name))


class OtherDevice:
    """A process that serves segments, behind the relay that is its link, which is another process."""

    def __init__(self, relay: RelayProcess) -> None:
        self.relay, self.address = relay, DeviceAddress(url=relay.url, token=TOKEN)
        self._link: PhaseLink | None = None

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        """Gone until it has a link."""
        with serving("onnxruntime") as device, closing(RelayProcess(device.url)) as relay:
            relay.cut()
            yield cls(relay)

    def has(self, link: PhaseLink | None) -> None:
        """The link from now on; None: the device is gone."""
        if link == self._link:
            return
        self._link = link
        if link is None:
            self.relay.cut()
        else:
            self.relay.set(link.round_trip_ms / 2, link.up_mbps, link.down_mbps)


@contextmanager
def on_cores(cores: Set[int]) -> Iterator[None]:
    """Threads and processes that begin meanwhile have these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def coordinator_and_others() -> tuple[set[int], set[int]]:
    """The core of the coordinator, and those of what is elsewhere; the same where there is one."""
    coordinator, *others = sorted(os.sched_getaffinity(0))
    return {coordinator}, set(others) or {coordinator}


@contextmanager
def serving_rows(
    bundle: Path, played: PlayedScenario, peers: Mapping[str, OtherDevice], slower: int
) -> Iterator[ServingRows]:
    """The bundle's model, and its SubNets over the other devices, connected.

    Without spot checks: the coordinator does them between requests, which here is the time of the next system.
    """
    with ExitStack() as stack:
        model = stack.enter_context(adaptive_runtime.load(bundle))
        addresses = {name: device.address for name, device in peers.items()}
        placed, shared = dict[str, PlacedSubNet](), SharedDevices()
        for subnet in model.pool.bundle.manifest.subnets:
            if (placement := subnet.placement) is not None:
                split, plans = opened_plans(bundle, placement, slower)
                options = SplitOptions(coding=placement.coding, check_share=0.0)
                coordinator = SlowerCoordinator(split, slower)
                choice = EnvelopePlacements(plans, coding=options.coding, sends=True)
                placed[subnet.digest] = PlacedSubNet(split, choice, addresses, options, coordinator, shared)
                stack.callback(placed[subnet.digest].close)
        yield stack.enter_context(closing(ServingRows(model, played.rows, PlacedSubNets(placed), slower)))


def play(
    bundle: Path,
    played: PlayedScenario,
    systems: Mapping[str, frozenset[int]],
    work: Path,
    *,
    slower: int,
    processes: tuple[int, int],
    niceness: int = 0,
    images: Images | None = None,
) -> dict[str, PlayedSystem]:
    """All requests of the scenario, served by each system. processes: that compute, that stream through memory.

    niceness: of what serves; that of the other programs is 0.

    images: of requests (N, C, H, W); None: of the bundle's calibration sample.
    """
    scenario, trace = played.scenario, played.requests.trace
    root = work / "device"
    (root / "proc").mkdir(parents=True)
    (root / "proc/stat").symlink_to("/proc/stat")
    (cpu, bandwidth), (coordinator, elsewhere) = processes, coordinator_and_others()
    sys.setswitchinterval(SWITCH_S)  # as a service has it
    with ExitStack() as stack:
        with on_cores(elsewhere):
            peers = {name: stack.enter_context(OtherDevice.started()) for name in scenario.peers}
        stack.enter_context(on_cores(coordinator))
        serving = stack.enter_context(serving_rows(bundle, played, peers, slower))
        images = images_of(serving.model) if images is None else images
        serving.load(images[:1])
        everything = frozenset(range(len(played.rows.table)))
        found = {
            name: PlayedSystem(serving, everything - may_run, played.limits, played.policy)
            for name, may_run in systems.items()
        }
        surrounding = Surrounding(scenario, root, peers)
        serving.wait_for(scenario.at(0.0).phase.peers.keys())
        stress = stack.enter_context(Stress(cpu_processes=cpu, bandwidth_processes=bandwidth))
        run_at(niceness)
        stack.enter_context(surrounding)
        stack.enter_context(Sensing(device_sensors(root), tell=partial(_tell, tuple(found.values()))))
        follow(stress, trace, stack)
        start_s = time.monotonic()
        names, ends_s = list(found), [*trace.arrivals_s[1:], trace.duration_s]
        for number, (arrival_s, end_s) in enumerate(zip(trace.arrivals_s, ends_s, strict=True)):
            first = number % len(names)
            for place, name in enumerate(names[first:] + names[:first]):
                time.sleep(max(0.0, start_s + arrival_s + (end_s - arrival_s) * place / len(names) - time.monotonic()))
                found[name].request(images[number % len(images)][None])
        return found


def _tell(systems: Sequence[PlayedSystem], state: SensedState) -> None:
    for one in systems:
        one.sensed(state)
        time.sleep(HEARD_APART_S)


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

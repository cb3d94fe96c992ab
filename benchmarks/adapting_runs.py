"""Bundles served under real load, for `benchmarks.adapting`.

Legend: R requests, V variants.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import adaptive_runtime
from adaptive_runtime import AdaptingOptions, DeployedModel
from adaptive_runtime.bundle.chains import ChainFormat
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.estimate import ServedRun
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import ChoiceLimits, ChoicePolicy, Objective, RequestProgress, Switching
from adaptive_runtime.state.sensing import SensedState, Sensing, load_index
from adaptive_runtime.state.traces import LoadTrace, Pattern, RequestArrivals, Stress, trace_of
from benchmarks.policies_simulated import LOAD_BANDS, OURS, RATIO, load_bands
from benchmarks.simulation.published import FixedChoice, RatioChoice
from tests.support.threads import beside

LARGEST = "largest"
QUIET_REQUESTS = 100
HELD = 5
"""Requests in a row that are in time where a step of the load is over."""
PAUSE_S = 0.02
MAKES = ({"cpu": 1.0}, {"bandwidth": 1.0}, {"cpu": 1.0, "bandwidth": 1.0})
Images = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StressKind:
    """How many processes make the load."""

    cpu: int
    bandwidth: int

    def processes(self) -> Stress:
        return Stress(cpu_processes=self.cpu, bandwidth_processes=self.bandwidth)


@dataclass(slots=True)
class Served:
    """What a policy has served: numbers and latencies of requests; rows and times of all their runs, in order.

    decision_us: of each decision.
    """

    numbers: list[int] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    run_ms: list[float] = field(default_factory=list)
    decision_us: list[float] = field(default_factory=list)


def images_of(model: DeployedModel) -> Images:
    """Images of the bundle's calibration sample in the data's own size, else noise (N, C, H, W)."""
    bundle = model.pool.bundle
    subnet = bundle.manifest.subnets[0]
    shape = subnet.taken.shape
    sample = bundle.calibration()
    found = None if sample is None else sample.inputs.get(shape)
    return np.random.default_rng(0).standard_normal((8, *shape)).astype(np.float32) if found is None else found


@dataclass(frozen=True)
class Requests:
    """Requests of so many images (N, C, H, W), in turn from those of a bundle."""

    images: Images
    size: int

    def __getitem__(self, number: int) -> Images:
        return self.images[(number + np.arange(self.size)) % len(self.images)]


def form_of(runtime: str) -> ChainFormat:
    """The format that a runtime takes."""
    return "ncnn" if runtime == "ncnn" else "onnx"


def wait_until_warm(model: DeployedModel, rows: BundleVariants) -> None:
    """Load all variants."""
    for variant in rows.variants:
        answerer = model.pool.answerer(variant)
        model.pool.warm(answerer)
        model.pool.warm_ahead(answerer)


def quiet_ms(model: DeployedModel, requests: Requests) -> float:
    """Median latency of what serves."""
    return float(np.median([model.infer(requests[number]).latency_ms for number in range(QUIET_REQUESTS)]))


def stepped(
    folder: Path, runtime: str, steps: int, step_s: float, stress: StressKind, quantile: float, slack: float
) -> dict[str, float]:
    """Seconds from steps of the load until requests are in time again. slack: budget over the quiet latency of the largest."""
    with adaptive_runtime.load(folder, format=form_of(runtime)) as model:
        budget_ms = slack * quiet_ms(model, Requests(images_of(model), 1))
    options, found = AdaptingOptions(quantile=quantile), list[float]()
    with (
        adaptive_runtime.load(folder, budget_ms, format=form_of(runtime), adapts=options) as model,
        stress.processes() as processes,
    ):
        requests, latencies_ms, sent = Requests(images_of(model), 1), list[float](), 0
        for step in range(steps):
            processes.set()
            sent += len(_sent(model, requests, step_s))
            processes.set(**MAKES[step % len(MAKES)])
            start_s = time.monotonic()
            answers = _sent(model, requests, step_s)
            sent += len(answers)
            latencies_ms += [latency_ms for _, latency_ms in answers]
            found.append(_back_within(answers, budget_ms) - start_s)
        state, switches = model.state, model.state.switches
    back_s = np.maximum(0.0, found)
    return {
        "budget_ms": budget_ms,
        "steps": steps,
        "back_p50_s": float(np.median(back_s)),
        "back_p95_s": float(np.quantile(back_s, 0.95)),
        "attainment": float(np.mean(np.array(latencies_ms) <= budget_ms)),
        "requests": sent,
        "lost": sent - state.requests,
        "switches_per_minute": switches * 60 / (2 * step_s * steps),
    }


def _sent(model: DeployedModel, requests: Requests, seconds: float) -> list[tuple[float, float]]:
    """Requests one after another: when each was answered, and its latency."""
    found, until_s = list[tuple[float, float]](), time.monotonic() + seconds
    while time.monotonic() < until_s:
        latency_ms = model.infer(requests[len(found)]).latency_ms
        found.append((time.monotonic(), latency_ms))
        time.sleep(PAUSE_S)
    return found


def _back_within(answers: list[tuple[float, float]], budget_ms: float) -> float:
    """When the last late request was answered before `HELD` in time."""
    back_s, in_time = 0.0, 0
    for at_s, latency_ms in answers:
        in_time = in_time + 1 if latency_ms <= budget_ms else 0
        back_s = at_s if not in_time else back_s
        if in_time == HELD:
            return back_s
    return answers[-1][0]


class Compared:
    """Policies that serve the requests of a trace one after another, so that all have the same load."""

    def __init__(self, model: DeployedModel, runtime: str, limits: ChoiceLimits, size: int) -> None:
        self.model, self.limits, self.requests = model, limits, Requests(images_of(model), size)
        self.variants = BundleVariants.of(model.pool.bundle.manifest, form_of(runtime))
        self.answerers = [model.pool.answerer(variant) for variant in self.variants.variants]
        wait_until_warm(model, self.variants)
        self.load: float | None = None

    @property
    def largest(self) -> int:
        """The most accurate row."""
        return int(np.argmax(self.variants.table.accuracy_V))

    def adaptation(self, policy: Callable[[Objective], ChoicePolicy]) -> Adaptation:
        """A policy with a memory of its own."""
        options = AdaptingOptions(quantile=self.limits.quantile, policy=policy)
        return Adaptation(self.variants, self.limits, options)

    def run(
        self,
        trace: LoadTrace,
        stress: StressKind,
        policies: Mapping[str, Adaptation],
        in_turn: Mapping[str, Adaptation],
    ) -> tuple[dict[str, Served], list[float | None]]:
        """Serve all requests of a trace by all policies and by one of those `in_turn`; the load index at each."""
        adaptations = {**policies, **in_turn}
        served, loads = {name: Served() for name in adaptations}, list[float | None]()
        with self._sensing(adaptations), stress.processes() as processes:
            over = threading.Event()
            with beside(partial(processes.follow, trace, over.is_set), over=over):
                start_s, turns = time.monotonic(), list(in_turn)
                for number, arrival_s in enumerate(trace.arrivals_s):
                    time.sleep(max(0.0, start_s + arrival_s - time.monotonic()))
                    names = [*policies, turns[number % len(turns)]]
                    first = number % len(names)
                    for name in names[first:] + names[:first]:
                        self._serve(adaptations[name], served[name], number, run_by_run=name == OURS)
                        time.sleep(PAUSE_S)
                    loads.append(self.load)
        return served, loads

    def _serve(self, adaptation: Adaptation, served: Served, number: int, *, run_by_run: bool) -> None:
        """One request: a run for each image. run_by_run: the time left is looked after before each."""
        start_ns, images, runs = time.perf_counter_ns(), self.requests[number], list[ServedRun]()
        request = RequestProgress(len(images), len(images))
        for place, image in enumerate(images):
            if run_by_run or place == 0:
                asked_ns = time.perf_counter_ns()
                decision = adaptation.choose(request=request)
                served.decision_us.append((time.perf_counter_ns() - asked_ns) / 1e3)
                variant = self.variants.variants[decision.variant]
                self.model.use(variant.digest, variant.exit, early=variant.early)
            run_ns = time.perf_counter_ns()
            answer = self.model.infer(image[None])
            run_ms = (time.perf_counter_ns() - run_ns) / 1e6
            runs.append(ServedRun(variant, answer.exits, run_ms))
            served.rows.append(decision.variant)
            served.run_ms.append(run_ms)
            request = request.after(decision.effective_ms, (time.perf_counter_ns() - start_ns) / 1e6)
        adaptation.served(runs, request)
        served.numbers.append(number)
        served.latency_ms.append((time.perf_counter_ns() - start_ns) / 1e6)

    @contextmanager
    def _sensing(self, policies: Mapping[str, Adaptation]) -> Iterator[None]:
        """One sample a second for all policies."""

        def tell(state: SensedState) -> None:
            self.load = load_index(state)
            for adaptation in policies.values():
                adaptation.sensed(state)

        with Sensing(tell=tell):
            yield


def policies_of(compared: Compared, loads: list[float | None], ratios: list[float]) -> dict[str, Adaptation]:
    """Ours and the published ones. loads, ratios: of the largest on another trace of the pattern."""
    known = [(load, ratio) for load, ratio in zip(loads, ratios, strict=True) if load is not None]
    bands = partial(load_bands, loads=[load for load, _ in known], ratios=[ratio for _, ratio in known])
    return {
        OURS: compared.adaptation(Switching),
        RATIO: compared.adaptation(RatioChoice),
        LOAD_BANDS: compared.adaptation(bands),
    }


def statics_of(compared: Compared) -> dict[str, Adaptation]:
    """Every variant alone, by its name in the table."""
    table = compared.variants.table
    return {name: compared.adaptation(fixed(row)) for row, name in enumerate(table.names)}


def fixed(row: int) -> Callable[[Objective], ChoicePolicy]:
    """A policy of one variant."""
    return lambda best: FixedChoice(best, row)


def drawn(pattern: Pattern, seed: int, seconds: float, requests_per_s: float) -> LoadTrace:
    """A trace of real load."""
    arrivals = RequestArrivals(requests_per_s=requests_per_s)
    return trace_of(pattern, seed=seed, duration_s=seconds, arrivals=arrivals)

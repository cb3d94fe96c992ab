"""The stress on a bundle: services, requests at a pace, other processes that come and go, and the resulting decisions.

The bundle is the source of requests: its images, their right answers, and whether a budget fits it. Its service is a
process of its own, which ends with this process, however that ends. The environment of the services is the load of
other processes, and the times of requests.

Legend: N images, C channels, H height, W width.
"""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import IO, Any, NamedTuple, Self

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Integers
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.model.opening import serving_formats
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy.decisions import read_log
from adaptive_runtime.server.options import TOKEN_VARIABLE
from adaptive_runtime.server.protocol import INPUT, LENGTH_HEADER, NamedTensor, PackedBody, pack
from adaptive_runtime.server.running import READY
from adaptive_runtime.state.traces import LoadTrace, PlayedTrace, Stress
from tasks.base.errors import UserError, shortened
from tasks.base.processes import end
from tasks.base.progress import Progress
from tasks.deploy.settings import PHASES, StressSettings
from tasks.deploy.stress.results import StressedAnswer, StressedSwitch, StressReport, System, by_phase


@dataclass(frozen=True, slots=True)
class AskedBundle:
    """images (N, C, H, W): as a service takes them. labels (N,): None: there are none. split: split behind the accuracies.
    accuracies: by digest and exit; exit None: of the whole SubNet.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    accuracies: Mapping[tuple[str, str | None], float]
    split: str

    @classmethod
    def open(cls, folder: Path, settings: StressSettings) -> "AskedBundle":
        """Read a bundle. AdaptiveError in one line: it is damaged, no budget fits, or it has no images."""
        bundle = OpenBundle.open(folder)
        first = bundle.manifest.subnets[0]
        next_step = "serve it: autotailor-runtime serve, or autotailor deploy"
        if first.taken.inputs is not None:
            raise UserError(f"bundle '{folder}'", "has several inputs; stress asks with images", next_step=next_step)
        if first.taken.words is not None:
            raise UserError(f"bundle '{folder}'", "is of texts; stress asks with images", next_step=next_step)
        if (problem := bundle.manifest.problem) is not None:
            raise UserError(
                f"bundle '{folder}'", f"is for {problem}; stress compares classes of images", next_step=next_step
            )
        left_out: list[str] = []
        found = BundleVariants.of(bundle.manifest, *serving_formats(bundle, settings.format, left_out.append))
        rows = list(zip(found.variants, found.table.accuracy, strict=True))
        _check_budget(found, settings)
        labelled = bundle.source_images()
        return cls(
            images=_sample(bundle) if labelled is None else labelled.normalised(first.of_images),
            labels=None if labelled is None else labelled.labels,
            accuracies={(one.digest, one.exit): accuracy for one, accuracy in reversed(rows) if not one.early},
            split=next(iter(first.accuracy), "test"),
        )

    def requests(self, images: int) -> list[NDArray[np.int64]]:
        """Numbers of the images of each request (M,), M per request; all images are used, some twice if M does not divide N."""
        starts = range(0, len(self.images), images)
        return [np.arange(start, start + images) % len(self.images) for start in starts]

    def accuracy(self, subnet: str, exit: str) -> float:
        """The accuracy of a SubNet that has answered at an exit."""
        return self.accuracies.get((subnet, exit), self.accuracies[subnet, None])


def _sample(bundle: OpenBundle) -> NDArray[np.float32]:
    """The images of the calibration sample in the data's resolution."""
    shape, sample = bundle.manifest.subnets[0].taken.shape, bundle.calibration()
    if sample is None or shape not in sample.inputs:
        got = f"has no images of {'x'.join(map(str, shape))} to ask with"
        raise UserError(f"bundle '{bundle.folder}'", got, next_step="export it with export.adaptable=true")
    return sample.inputs[shape]


def _check_budget(found: BundleVariants, settings: StressSettings) -> None:
    """Raise UserError if no variant keeps the budget (given, or from the slack) even when nothing else runs."""
    images = settings.images
    latency_ms = [images * one_ms for one_ms in found.table.latency_ms]
    _, most_accurate_ms = max(zip(found.table.accuracy, latency_ms, strict=True), key=lambda row: (row[0], -row[1]))
    if (budget_ms := settings.budget_ms) is None:
        budget_ms = settings.slack * most_accurate_ms
    if budget_ms < (fastest_ms := min(latency_ms)):
        named = "budget_ms" if settings.budget_ms is not None else "slack"
        per = "" if images == 1 else f" for {images} images"
        got = f"no variant keeps {budget_ms:.3g} ms{per}; the fastest takes {fastest_ms:.3g} ms without load"
        allowed = f"{fastest_ms if named == 'budget_ms' else fastest_ms / most_accurate_ms:.3g} and more"
        raise UserError(
            f"stress.{named}", got, allowed=allowed, next_step=f"the most accurate takes {most_accurate_ms:.3g} ms"
        )


BUSY = 0.5
"""Pressure of one kind from which a time of a recorded trace counts as stress."""
CALM, STRESS = PHASES[0][0], PHASES[1][0]


@dataclass(frozen=True, slots=True)
class StressSchedule:
    """trace: the pressure over time, and the requests. phase: the name of the phase at a time."""

    trace: LoadTrace
    phase: Callable[[float], str]

    @classmethod
    def of(cls, settings: StressSettings) -> Self:
        """The recorded trace, else the phases. AdaptiveError in one line: the file is no trace."""
        if settings.trace is None:
            scenario = settings.scenario
            trace = scenario.trace((), seed=0)
            return cls(_paced(trace, settings.requests_per_s), lambda at_s: scenario.at(at_s).phase.name)
        trace = LoadTrace.read(settings.trace)
        trace = trace if trace.arrivals_s else _paced(trace, settings.requests_per_s)

        def phase(at_s: float) -> str:
            pressure = trace.pressure(int(trace.at(np.array([at_s]))[0]))
            return STRESS if max(pressure.values()) >= BUSY else CALM

        return cls(trace, phase)


def _paced(trace: LoadTrace, requests_per_s: float) -> LoadTrace:
    """The same load, with requests at a constant rate; at least one."""
    count = max(1, round(trace.duration_s * requests_per_s))
    return trace.model_copy(update={"arrivals_s": tuple((np.arange(count) / requests_per_s).tolist())})


INFER = "/v2/models/model/infer"
DEADLINE_MS = 60_000
END_S = 10.0
POLL_S = 0.25
UNCHANGED_S = 2.0
"""Time without changes [s] after which a service has loaded all SubNets that it has room for."""


class ServedAnswer(NamedTuple):
    """An answer to N images: for each its class, and the SubNet and the exit that gave it.
    latency_ms: in the model. round_trip_ms: from sending the request to its answer.
    """

    classes: tuple[int, ...]
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    latency_ms: float
    round_trip_ms: float


class AskedService:
    """A running service. page: the address of its live page, with the token."""

    def __init__(self, http: httpx.Client, page: str) -> None:
        self._http, self.page = http, page

    def ask(self, body: PackedBody) -> ServedAnswer:
        """The answer to images that `body_of` packed. UserError: the service refuses."""
        start_s = time.perf_counter()
        headers = {LENGTH_HEADER: str(body.json_bytes)}
        described = self._asked("POST", INFER, content=body.content, headers=headers)
        round_trip_ms = (time.perf_counter() - start_s) * 1e3
        facts, outputs = described["parameters"], {one["name"]: one["data"] for one in described["outputs"]}
        classes = tuple(outputs["classes"])
        named = (tuple(facts[name].split(",")) for name in ("subnet", "exit"))
        # a service reports a name only once if all images share it
        subnets, exits = (names * len(classes) if len(names) == 1 else names for names in named)
        return ServedAnswer(classes, subnets, exits, facts["latency_ms"], round_trip_ms)

    def settle(self, within_s: float) -> None:
        """Return when the service has loaded its SubNets ahead, or after this many seconds."""
        warm, since_s, end_s = None, time.monotonic(), time.monotonic() + within_s
        while time.monotonic() < min(since_s + UNCHANGED_S, end_s):
            now = self._asked("GET", "/state")["model"]["warm"]
            if now != warm:
                warm, since_s = now, time.monotonic()
            time.sleep(POLL_S)

    def _asked(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **given)
            found: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UserError("stress", f"the service does not answer ({shortened(error)})") from error
        if response.is_error:
            raise UserError("stress", f"the service refuses a request: {found.get('error', response.status_code)}")
        return found


@contextmanager
def bundle_service(bundle: Path, words: Sequence[str], ready_s: float) -> Iterator[AskedService]:
    """A service of a bundle with further words of `autotailor-runtime serve`. UserError: it does not become ready in time."""
    token = secrets.token_urlsafe(24)
    fixed = ["--port", "0", "--stop-with-stdin", "--deadline-ms", str(DEADLINE_MS)]
    command = [sys.executable, "-m", "adaptive_runtime", "serve", str(bundle), *fixed, *words]
    with tempfile.TemporaryFile() as described:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=described,
            env=os.environ | {TOKEN_VARIABLE: token},
        )
        try:
            url = _address(process, described, ready_s)
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=ready_s) as http:
                yield AskedService(http, f"{url}/#{token}")
        finally:
            end(process, END_S)
            if process.stdout is not None:
                process.stdout.close()


def _address(process: subprocess.Popen[bytes], described: IO[bytes], ready_s: float) -> str:
    """The address of a service, once it is ready."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], ready_s)[0]:
        raise UserError(
            "stress", f"the service was not ready within {ready_s:g} s", next_step="give more by stress.ready_s"
        )
    line = process.stdout.readline().decode().strip()
    if not line.startswith(READY):
        described.seek(0)
        last = described.read().decode(errors="replace").strip().splitlines()[-1:]
        raise UserError("stress", f"the service has not started: {last[0] if last else 'it gives no reason'}")
    return line.removeprefix(READY)


def body_of(x_NCHW: NDArray[np.float32]) -> PackedBody:
    """A request for images."""
    return pack({}, "inputs", [NamedTensor(INPUT, x_NCHW, binary=True)])


DECISIONS_FILE = "decisions.jsonl"
BUSY_TIMES = ("user", "nice", "system", "irq", "softirq", "steal")
"""Kinds of processor time that psutil knows; a guest's time is part of `user`."""
CALM_REQUESTS = 10
"""Number of requests to the most accurate SubNet whose latencies determine the budget."""


@dataclass(slots=True)
class _Asking:
    """Both services, their requests, and their answers."""

    asked: AskedBundle
    images: int
    services: dict[System, AskedService] = field(default_factory=dict)
    answers: list[StressedAnswer] = field(default_factory=list)
    requests: list[tuple[Integers, PackedBody]] = field(init=False)

    def __post_init__(self) -> None:
        numbers = self.asked.requests(self.images)
        self.requests = [(images, body_of(self.asked.images[images])) for images in numbers]

    def calm_ms(self, system: System) -> float:
        """The median latency of requests to a service [ms]."""
        bodies = [self.requests[number % len(self.requests)][1] for number in range(CALM_REQUESTS)]
        return median([self.services[system].ask(body).latency_ms for body in bodies])

    def ask(self, number: int, phase: str) -> ServedAnswer:
        """Send a request to both services, in alternating order; the answer of the adaptive one."""
        images, body = self.requests[number % len(self.requests)]
        order = sorted(self.services, reverse=bool(number % 2))
        given = {system: self.services[system].ask(body) for system in order}
        largest = given["largest alone"].classes
        expected = largest if self.asked.labels is None else self.asked.labels[images].tolist()
        for system, one in given.items():
            self.answers.append(
                StressedAnswer(
                    phase=phase,
                    system=system,
                    subnets=one.subnets,
                    latency_ms=one.latency_ms,
                    round_trip_ms=one.round_trip_ms,
                    accuracy=mean(map(self.asked.accuracy, one.subnets, one.exits)),
                    right=mean(found == wanted for found, wanted in zip(one.classes, expected, strict=True)),
                )
            )
        return given["adapts"]


class OtherPrograms:
    """Processor time of all programs but this one, its services and its load, from now on.

    Time that a host takes from a virtual machine (`steal`) counts as other programs' time.
    """

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._busy_s, self._own_s = _busy_s(), _own_s()

    def share(self) -> float:
        """Share of all cores that other programs have used since the start, 0 to 1."""
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return min(1.0, max(0.0, others_s / ((time.monotonic() - self._start_s) * (os.cpu_count() or 1))))


def _busy_s() -> float:
    """Time in which cores were not idle, over all cores, since the machine started [s]."""
    times = psutil.cpu_times()._asdict()
    return sum(times.get(name, 0.0) for name in BUSY_TIMES)


def _own_s() -> float:
    """Processor time of this process and of all processes that it has started [s]."""
    this = psutil.Process()
    used_s = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used_s += sum(process.cpu_times()[:2])
    return used_s


def run(settings: StressSettings, bundle: Path, progress: Progress) -> StressReport:
    """Serve the bundle, send requests under stress, end all processes. AdaptiveError in one line: it cannot be served."""
    asked, schedule = AskedBundle.open(bundle, settings), StressSchedule.of(settings)
    with ExitStack() as stack:
        decisions = Path(stack.enter_context(tempfile.TemporaryDirectory())) / DECISIONS_FILE
        asking, form = _Asking(asked, settings.images), [] if settings.format is None else ["--format", settings.format]

        def serve(system: System, *words: str) -> None:
            service = stack.enter_context(bundle_service(bundle, [*words, *form], settings.ready_s))
            service.settle(settings.ready_s)
            asking.services[system] = service

        serve("largest alone")
        budget_ms = settings.budget_ms or settings.slack * asking.calm_ms("largest alone")
        serve("adapts", "--adapts", "--budget-ms", str(budget_ms), "--decisions", str(decisions))
        progress.say(f"live page: {asking.services['adapts'].page}")
        stress = stack.enter_context(settings.processes)
        others = OtherPrograms()
        start_s = time.monotonic()
        _play(asking, schedule, stress, progress)
        other_share = others.share()
        switches = _switches(decisions, schedule, start_s)
    return StressReport(
        bundle=str(bundle),
        budget_ms=budget_ms,
        split=asked.split,
        labelled=asked.labels is not None,
        phases=by_phase(asking.answers, budget_ms),
        switches=switches,
        other_share=other_share,
    )


def _play(asking: _Asking, schedule: StressSchedule, stress: Stress, progress: Progress) -> None:
    """Send all requests at their times; requests whose time passes while another one is answered are left out."""
    arrivals_s, number = schedule.trace.arrivals_s, 0
    played = PlayedTrace(stress, schedule.trace)
    with progress.bar("stress", len(arrivals_s)) as bar:
        while number < len(arrivals_s):
            played.until(arrivals_s[number])
            phase = schedule.phase(arrivals_s[number])
            answer = asking.ask(number, phase)
            bar.note(f"{phase}: {answer.subnets[-1]}, {answer.latency_ms:.1f} ms")
            following = max(number + 1, bisect_right(arrivals_s, played.now_s) - 1)
            bar.advance(following - number)
            number = following
    stress.set()


def _switches(decisions: Path, schedule: StressSchedule, start_s: float) -> tuple[StressedSwitch, ...]:
    """The changes of the serving variant since a time, from the record of decisions, whose clock is that of this process."""
    made = [line.decision for section in read_log(decisions) for line in section.decisions]
    return tuple(
        StressedSwitch(
            at_s=one.now_s - start_s,
            phase=schedule.phase(max(0.0, one.now_s - start_s)),
            step=one.step,
            variant=one.name,
            reason=one.reason,
        )
        for one in made
        if one.step not in ("stay", "hurry")  # "hurry" serves a single run
    )

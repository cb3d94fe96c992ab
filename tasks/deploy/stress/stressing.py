"""The stress itself: services, requests at a pace, other processes that come and go, and the resulting decisions."""

import tempfile
import time
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.policy.log import read_log
from adaptive_runtime.server.tensors import PackedBody
from adaptive_runtime.state.traces import PlayedTrace, Stress
from tasks.base.progress import Progress
from tasks.deploy.stress.asked import AskedBundle
from tasks.deploy.stress.results import StressedAnswer, StressedSwitch, StressReport, System, by_phase
from tasks.deploy.stress.schedule import StressSchedule
from tasks.deploy.stress.service import AskedService, ServedAnswer, body_of, bundle_service
from tasks.deploy.stress.settings import Settings

DECISIONS_FILE = "decisions.jsonl"
CALM_REQUESTS = 10
"""Number of requests to the most accurate SubNet whose latencies determine the budget."""

ImageNumbers = NDArray[np.int64]


@dataclass(slots=True)
class _Asking:
    """Both services, their requests, and their answers."""

    asked: AskedBundle
    images: int
    services: dict[System, AskedService] = field(default_factory=dict)
    answers: list[StressedAnswer] = field(default_factory=list)
    requests: list[tuple[ImageNumbers, PackedBody]] = field(init=False)

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
            accuracy = mean(map(self.asked.accuracy, one.subnets, one.exits))
            right = mean(found == wanted for found, wanted in zip(one.classes, expected, strict=True))
            times_ms = (one.latency_ms, one.round_trip_ms)
            self.answers.append(StressedAnswer(phase, system, one.subnets, *times_ms, accuracy, right))
        return given["adapts"]


def run(settings: Settings, bundle: Path, progress: Progress) -> StressReport:
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
        start_s = time.monotonic()
        _play(asking, schedule, stress, progress)
        switches = _switches(decisions, schedule, start_s)
    return StressReport(
        bundle=str(bundle),
        budget_ms=budget_ms,
        split=asked.split,
        labelled=asked.labels is not None,
        phases=by_phase(asking.answers, budget_ms),
        switches=switches,
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

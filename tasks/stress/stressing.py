"""The stress itself: services, requests at a pace, other processes that come and go, and the decisions that followed."""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from adaptive_runtime.choice.log import read_log
from adaptive_runtime.service.tensors import PackedBody
from adaptive_runtime.traces import Scenario, Stress
from tasks.progress import Progress
from tasks.stress.asked import AskedBundle
from tasks.stress.results import StressedAnswer, StressedSwitch, StressReport, System, by_phase
from tasks.stress.service import AskedService, ServedAnswer, body_of, bundle_service
from tasks.stress.settings import Settings

DECISIONS_FILE = "decisions.jsonl"


@dataclass(slots=True)
class _Asking:
    """Both services, what they are asked, and what they have answered."""

    asked: AskedBundle
    services: dict[System, AskedService]
    answers: list[StressedAnswer] = field(default_factory=list)
    bodies: list[PackedBody] = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = [body_of(x_CHW) for x_CHW in self.asked.images]

    def ask(self, number: int, phase: str) -> ServedAnswer:
        """One image to both services, one after the other, in turn the one or the other first; the answer of what adapts."""
        image = number % len(self.bodies)
        order = sorted(self.services, reverse=bool(number % 2))
        given = {system: self.services[system].ask(self.bodies[image]) for system in order}
        largest = given["largest alone"].class_index
        expected = largest if self.asked.labels is None else int(self.asked.labels[image])
        for system, one in given.items():
            accuracy, right = self.asked.accuracy(one.subnet, one.exit), one.class_index == expected
            times_ms = (one.latency_ms, one.round_trip_ms)
            self.answers.append(StressedAnswer(phase, system, one.subnet, *times_ms, accuracy, right))
        return given["adapts"]


def run(settings: Settings, bundle: Path, progress: Progress) -> StressReport:
    """Serve the bundle, ask and stress it, and end all that was started. AdaptiveError in one line: it cannot be served."""
    asked, scenario = AskedBundle.open(bundle, settings), settings.scenario
    with ExitStack() as stack:
        decisions = Path(stack.enter_context(tempfile.TemporaryDirectory())) / DECISIONS_FILE
        form = [] if settings.format is None else ["--format", settings.format]
        adapts = ["--adapts", "--budget-ms", str(asked.budget_ms), "--decisions", str(decisions), *form]
        words_of: dict[System, list[str]] = {"adapts": adapts, "largest alone": form}
        services: dict[System, AskedService] = {}
        for system, words in words_of.items():
            services[system] = stack.enter_context(bundle_service(bundle, words, settings.ready_s))
            services[system].settle(settings.ready_s)
        progress.say(f"live page: {services['adapts'].page}")
        asking = _Asking(asked, services)
        counts = {"cpu_processes": settings.computing, "bandwidth_processes": settings.bandwidth_processes}
        stress = stack.enter_context(Stress(**counts))
        start_s = time.monotonic()
        _play(asking, scenario, settings.requests_per_s, stress, progress)
        switches = _switches(decisions, scenario, start_s)
    return StressReport(
        bundle=str(bundle),
        budget_ms=asked.budget_ms,
        split=asked.split,
        labelled=asked.labels is not None,
        phases=by_phase(asking.answers, asked.budget_ms),
        switches=switches,
    )


def _play(asking: _Asking, scenario: Scenario, requests_per_s: float, stress: Stress, progress: Progress) -> None:
    """Requests at a pace until the scenario ends; those whose time passes while another one is answered are left out."""
    start_s, number, phase = time.monotonic(), 0, ""
    count = max(1, round(scenario.duration_s * requests_per_s))
    with progress.bar("stress", count) as bar:
        while number < count:
            time.sleep(max(0.0, start_s + number / requests_per_s - time.monotonic()))
            now = scenario.at(number / requests_per_s).phase
            if now.name != phase:
                stress.set(cpu=now.cpu, bandwidth=now.bandwidth)
                phase = now.name
            answer = asking.ask(number, phase)
            bar.note(f"{phase}: {answer.subnet}, {answer.latency_ms:.1f} ms")
            due = int((time.monotonic() - start_s) * requests_per_s)
            bar.advance(max(1, min(count, due) - number))
            number = max(number + 1, due)
    stress.set()


def _switches(decisions: Path, scenario: Scenario, start_s: float) -> tuple[StressedSwitch, ...]:
    """The changes of what serves since a time, from the record of decisions; its clock is that of this process, too."""
    made = [line.decision for section in read_log(decisions) for line in section.decisions]
    return tuple(
        StressedSwitch(
            at_s=one.now_s - start_s,
            phase=scenario.at(max(0.0, one.now_s - start_s)).phase.name,
            step=one.step,
            variant=one.name,
            reason=one.reason,
        )
        for one in made
        if one.step != "stay"
    )

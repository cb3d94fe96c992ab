"""Profiling on several identical devices: all of them work, one may die, and nobody measures what another has."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from profiling_agents.client import AgentBusyError, AgentClient, ModelJob
from profiling_agents.messages import Measurement, MeasureSettings
from tasks.base.artifacts import read_lines
from tasks.base.progress import Bar, Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.fleet import Fleet
from tests.support.agents import agent_processes as processes

ONNXRUNTIME = ("--backend", "onnxruntime", "--port", "0")
QUICK = profile.Settings(
    measure=MeasureSettings(time_cap_ms=5.0, warmup_ms=0.5, min_blocks=1, patience=0.0),
    subnet=MeasureSettings(warmup_ms=1.0, min_blocks=2, time_cap_ms=20.0, layers_ms=20.0, patience=0.0),
    flush_s=0.05,
)
ALONE = QUICK.model_copy(update={"method": "alone"})
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def operators(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    enumeration.run(supernet, folder, Silent())
    return folder


class Device(AgentClient):
    """Begins to measure when all devices of a fleet have something to measure; counts its results."""

    def __init__(self, url: str, all_at_work: threading.Barrier | None = None) -> None:
        super().__init__(url, processes.TOKEN, patience_s=0.5)
        self.all_at_work, self.results_given = all_at_work, 0

    def measure(
        self, jobs: Iterable[ModelJob], settings: MeasureSettings | None = None
    ) -> Generator[Measurement, None, None]:
        if self.all_at_work is not None:
            first, self.all_at_work = self.all_at_work, None
            first.wait(LIMIT_S)
        for measured in super().measure(jobs, settings):
            self.results_given += 1
            yield measured


@contextmanager
def fleet_of(urls: list[str]) -> Iterator[Fleet]:
    with fleet_with([Device(url) for url in urls]) as fleet:
        yield fleet


@contextmanager
def fleet_with(devices: Sequence[Device]) -> Iterator[Fleet]:
    with ExitStack() as stack:
        clients = [stack.enter_context(device) for device in devices]
        yield stack.enter_context(Fleet(clients, first_pause_s=0.1))


class Acting(Silent):
    """Does something when so many SubNets or operators are measured."""

    def __init__(self, after: int, action: Callable[[], None]) -> None:
        self.left, self.action = after, action

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        with super().bar(name, total, done) as inner:
            outer = self

            class Counting:
                def advance(self, count: int = 1) -> None:
                    inner.advance(count)
                    outer.left -= count
                    if outer.left == 0:
                        outer.action()

                def note(self, text: str) -> None:
                    inner.note(text)

            yield Counting()


@pytest.mark.parametrize("settings", [QUICK, ALONE], ids=["in situ", "alone"])
def test_a_device_that_dies_in_the_middle_costs_no_operator(
    supernet: Path, operators: Path, tmp_path: Path, settings: profile.Settings
) -> None:
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started(ONNXRUNTIME)) for _ in range(2)]
        fleet = stack.enter_context(fleet_of([printed["agent ready"] for _, printed in agents]))
        killing = Acting(5, agents[0][0].kill)
        result = profile.run(settings, operators, fleet, tmp_path, killing, supernet)
    assert killing.left < 0
    total = len(enumeration.read_operators(operators))
    assert (result["measured_now"], result["lut"]["entries"], result["lut"]["failed"]) == (total, total, 0)
    lines = [line["key"] for line in read_lines(tmp_path / profile.SUBNETS_FILE)]
    assert len(lines) == len(set(lines))


def test_all_devices_measure_subnets_at_the_same_time(supernet: Path, operators: Path, tmp_path: Path) -> None:
    """Neither begins before both have SubNets; together they measure what one does."""
    measured = []
    for count in (1, 2):
        with ExitStack() as stack:
            agents = [stack.enter_context(processes.started(ONNXRUNTIME)) for _ in range(count)]
            all_at_work = threading.Barrier(count)
            devices = [Device(printed["agent ready"], all_at_work) for _, printed in agents]
            fleet = stack.enter_context(fleet_with(devices))
            out = tmp_path / f"{count}"
            out.mkdir()
            profile.run(QUICK, operators, fleet, out, Silent(), supernet)
        measured.append(sorted(line["key"] for line in read_lines(out / profile.SUBNETS_FILE)))
        assert all(device.results_given for device in devices)
    assert measured[0] == measured[1]


def test_two_runs_on_the_same_devices_measure_nothing_twice(supernet: Path, operators: Path, tmp_path: Path) -> None:
    """The second waits for the devices, and finds what the first has left in the store."""
    settings = ALONE.model_copy(update={"store": tmp_path / "luts"})
    measured: dict[str, int] = {}

    def run(name: str, urls: list[str]) -> None:
        while name not in measured:
            try:
                with fleet_of(urls) as fleet:
                    found = profile.run(settings, operators, fleet, tmp_path / name, Silent(), supernet)
                    measured[name] = found["measured_now"]
            except AgentBusyError:
                time.sleep(0.2)  # asking all the time would slow the other run down

    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started(ONNXRUNTIME)) for _ in range(2)]
        urls = [printed["agent ready"] for _, printed in agents]
        threads = [threading.Thread(target=run, args=(name, urls)) for name in ("one", "other")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(measured.values()) == [0, len(enumeration.read_operators(operators))]


@pytest.mark.long
def test_a_killed_run_leaves_its_device_to_the_next_which_measures_the_rest(
    supernet: Path, operators: Path, tmp_path: Path
) -> None:
    """The agent is no child of the run: its lease has to expire."""
    settings = ALONE.model_copy(update={"store": tmp_path / "luts", "measure": MeasureSettings(time_cap_ms=50.0)})
    script = """
        import sys
        from pathlib import Path
        from profiling_agents.client import AgentClient
        from tasks.base.progress import Silent
        from tasks.measuring import profile
        url, token, operators, out, settings = sys.argv[1:]
        with AgentClient(url, token) as client, client.lease(ttl_s=10.0):
            profile.run(profile.Settings.model_validate_json(settings), Path(operators), client, Path(out), Silent())
    """
    with processes.started(ONNXRUNTIME) as (_, printed):
        url = printed["agent ready"]
        words = [url, processes.TOKEN, str(operators), str(tmp_path / "one"), settings.model_dump_json()]
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *words]) as run:
            assert processes.soon(lambda: len(list((tmp_path / "luts").rglob("part-*"))) >= 3)
            run.send_signal(signal.SIGKILL)
        assert run.returncode == -signal.SIGKILL
        with AgentClient(url, processes.TOKEN) as client:
            with pytest.raises(AgentBusyError), client.lease():
                pass
            with client.lease(wait_s=120.0):
                known = len(profile.open_table(settings, tmp_path / "luts", client.capabilities()).entries())
                result = profile.run(settings, operators, client, tmp_path / "two", Silent())
    assert 3 <= known < result["lut"]["entries"]
    assert (result["known"], result["lut"]["failed"]) == (known, 0)

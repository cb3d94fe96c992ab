"""Parallel profiling over several identical devices: real agents on loopback, one of them killed in the middle."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flows.config import DeviceProfile
from flows.pipeline.devices import Devices
from profiling_agents.client import AgentBusyError, AgentClient, AgentError, MeasureSettings, ModelJob
from tasks.base.errors import UserError
from tasks.measuring.fleet import Fleet
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes

STEADY = MeasureSettings(time_cap_ms=60.0, confidence=1e-6, spread_limit=1e9, patience=0.0)
NCNN = ("--backend", "ncnn")


def jobs(count: int) -> Iterator[ModelJob]:
    return (models.convolution("ncnn", f"{index}") for index in range(count))


def client_of(stack: ExitStack, url: str) -> AgentClient:
    return stack.enter_context(AgentClient(url, processes.TOKEN, patience_s=0.5))


@pytest.mark.long
def test_two_devices_share_the_work_and_each_job_has_one_result() -> None:
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started([*NCNN, "--port", "0"])) for _ in range(2)]
        clients = [client_of(stack, printed["agent ready"]) for _, printed in agents]
        with Fleet(clients) as fleet:
            results = list(fleet.measure(jobs(60), STEADY))
    assert Counter(result.key for result in results) == Counter(f"{index}" for index in range(60))
    assert {result.state for result in results} == {"ok"}
    assert [result.key for result in results] != [f"{index}" for index in range(60)]


@pytest.mark.long
def test_what_a_dying_device_had_is_measured_by_the_other_and_nothing_twice() -> None:
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started([*NCNN, "--port", "0"])) for _ in range(2)]
        clients = [client_of(stack, printed["agent ready"]) for _, printed in agents]
        results = []
        fleet = stack.enter_context(Fleet(clients, first_pause_s=0.1))
        for result in fleet.measure(jobs(60), STEADY):
            results.append(result)
            if len(results) == 15:
                agents[0][0].kill()
    assert Counter(result.key for result in results) == Counter(f"{index}" for index in range(60))
    assert {result.state for result in results} == {"ok"}


@pytest.mark.long
def test_a_device_that_comes_back_works_again() -> None:
    with ExitStack() as stack:
        first, printed = stack.enter_context(processes.started([*NCNN, "--port", "0"]))
        url = printed["agent ready"]
        results = []
        fleet = stack.enter_context(Fleet([client_of(stack, url)], first_pause_s=0.5))
        for result in fleet.measure(jobs(40), STEADY):
            results.append(result)
            if len(results) == 10:
                first.kill()
                first.wait()
                stack.enter_context(processes.started([*NCNN, "--port", url.rpartition(":")[2]]))
    assert [result.key for result in results] == [f"{index}" for index in range(40)]
    assert {result.state for result in results} == {"ok"}


def test_the_death_of_the_last_device_is_an_error_after_what_was_measured() -> None:
    results = []

    def measure() -> None:
        with ExitStack() as stack:
            agent, printed = stack.enter_context(processes.started([*NCNN, "--port", "0"]))
            fleet = stack.enter_context(Fleet([client_of(stack, printed["agent ready"])], first_pause_s=0.1))
            for result in fleet.measure([*jobs(5), models.endless("ncnn", "endless")], STEADY):
                results.append(result)
                if len(results) == 5:
                    agent.kill()

    with pytest.raises(AgentError, match="not reachable"):
        measure()
    assert [result.key for result in results] == ["0", "1", "2", "3", "4"]


def test_a_device_that_is_away_from_the_start_is_left_out() -> None:
    with ExitStack() as stack:
        _, printed = stack.enter_context(processes.started([*NCNN, "--port", "0"]))
        clients = [client_of(stack, "http://127.0.0.1:1"), client_of(stack, printed["agent ready"])]
        with Fleet(clients, first_pause_s=0.1) as fleet:
            assert len(list(fleet.measure(jobs(5)))) == 5


@pytest.mark.long
def test_devices_that_differ_are_refused() -> None:
    with ExitStack() as stack:
        options = [NCNN, ("--backend", "onnxruntime")]
        agents = [stack.enter_context(processes.started([*one, "--port", "0"])) for one in options]
        clients = [client_of(stack, printed["agent ready"]) for _, printed in agents]
        line = r"agents: .* is not the same device as .* \(differs in backend, "
        with Fleet(clients) as fleet, pytest.raises(UserError, match=line):
            list(fleet.measure(jobs(1)))


@pytest.mark.long
def test_leases_are_held_from_one_measuring_to_the_next_and_given_back_at_the_end() -> None:
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started([*NCNN, "--port", "0"])) for _ in range(2)]
        urls = [printed["agent ready"] for _, printed in agents]
        others = [client_of(stack, url) for url in urls]
        with Fleet([client_of(stack, url) for url in urls]) as fleet:
            for _ in range(2):
                assert len(list(fleet.measure(jobs(9)))) == 9
                for other in others:
                    with pytest.raises(AgentBusyError, match="leased by another client"), other.lease():
                        pass
        for other in others:
            assert [result.state for result in other.measure(jobs(1))] == ["ok"]


@pytest.mark.long
def test_a_fleet_takes_all_of_its_devices_or_none() -> None:
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started([*NCNN, "--port", "0"])) for _ in range(2)]
        urls = [printed["agent ready"] for _, printed in agents]
        others = [client_of(stack, url) for url in urls]
        clients = [client_of(stack, url) for url in (*urls, "http://127.0.0.1:1")]
        for other, free in (others, others[::-1]):
            with other.lease():
                with pytest.raises(AgentBusyError, match="leased by another client"), Fleet(clients):
                    pass
                with free.lease():
                    pass
        with Fleet(clients, first_pause_s=0.1) as fleet:
            results = list(fleet.measure(jobs(20)))
    assert Counter(result.key for result in results) == Counter(f"{index}" for index in range(20))


def test_a_fleet_without_devices_that_answer_is_one_line() -> None:
    with ExitStack() as stack:
        clients = [client_of(stack, f"http://127.0.0.1:{port}") for port in (1, 2)]
        with pytest.raises(AgentError, match=r"agent http://127\.0\.0\.1:1: not reachable"), Fleet(clients):
            pass


@pytest.mark.long
def test_a_lease_that_was_lost_between_two_measurings_is_taken_again() -> None:
    with ExitStack() as stack:
        agent, printed = stack.enter_context(processes.started([*NCNN, "--port", "0"]))
        url = printed["agent ready"]
        with Fleet([client_of(stack, url)], first_pause_s=0.1) as fleet:
            assert len(list(fleet.measure(jobs(3)))) == 3
            agent.kill()
            agent.wait()
            stack.enter_context(processes.started([*NCNN, "--port", url.rpartition(":")[2]]))
            assert [result.key for result in fleet.measure(jobs(3))] == ["0", "1", "2"]


@pytest.mark.long
def test_jobs_stay_lazy_their_faults_arrive_and_leaving_ends_the_threads() -> None:
    made: list[int] = []

    def broken() -> Iterator[ModelJob]:
        for index in range(30):
            made.append(index)
            yield models.convolution("ncnn", f"{index}")
        raise RuntimeError("no more models")

    with ExitStack() as stack:
        _, printed = stack.enter_context(processes.started([*NCNN, "--port", "0"]))
        fleet = stack.enter_context(Fleet([client_of(stack, printed["agent ready"])]))
        stream = fleet.measure(broken(), STEADY)
        assert next(stream).key == "0"
        assert len(made) < 30
        stream.close()
        results = []

        def measure() -> None:
            for result in fleet.measure(broken()):
                results.append(result.key)

        with pytest.raises(RuntimeError, match="no more models"):
            measure()
        assert results[:16] == [f"{index}" for index in range(16)]


@pytest.mark.long
def test_a_device_of_a_run_may_be_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", processes.TOKEN)
    with ExitStack() as stack:
        agents = [stack.enter_context(processes.started([*NCNN, "--port", "0"])) for _ in range(2)]
        urls = tuple(printed["agent ready"] for _, printed in agents)
        profile = DeviceProfile(backend="ncnn", agents=urls, token_env="TOKEN")
        with Devices({"boards": profile}) as devices:
            with devices.meter("boards") as meter:
                assert len(list(meter.measure(jobs(20)))) == 20
            agents[0][0].kill()
            agents[0][0].wait()
        with Devices({"boards": profile}) as devices, devices.exclusive("boards") as client:
            assert client.url == urls[1]
            assert len(list(client.measure(jobs(2)))) == 2

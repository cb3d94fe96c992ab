"""Faults of real agents: nothing is lost, nothing is measured twice, what fails is named.

Elsewhere: agents killed and restarted, also in the middle of a fleet (test_fleet), ends of leases and 10,000 queued
operators (test_agents_queue), limits on memory, CPU and wall-clock time (test_agents_measure).
"""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from profiling_agents.client import AgentClient, AgentError, Measurement, MeasureSettings, ModelJob, local_agent
from profiling_agents.messages import MIB
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.agents.cut_network import network

SLOW = MeasureSettings(time_cap_ms=150.0, confidence=1e-6, spread_limit=1e9, patience=0.0)


@pytest.fixture
def agent() -> Iterator[tuple[psutil.Process, str]]:
    """The service's process and its address."""
    with processes.started() as (process, printed):
        yield psutil.Process(process.pid), printed["agent ready"]


def jobs(count: int, prefix: str = "") -> list[ModelJob]:
    return [models.convolution("ncnn", f"{prefix}{index}") for index in range(count)]


def crashing(key: str) -> ModelJob:
    """A model whose two inputs cannot be joined, which ncnn does not check."""
    layers = ["Input in0 0 1 in0", "Input in1 0 1 in1", "Concat join 2 1 in0 in1 out0 0=0"]
    return models.ncnn_job(key, layers, 3, b"", (1, 8, 100, 100), (1, 8, 800, 800))


def large(key: str, seed: int = 0) -> ModelJob:
    """About 1.2 MB of weights."""
    return models.convolution("ncnn", key, channels_in=180, channels_out=180, size=2, seed=seed)


def test_a_cut_network_loses_nothing_and_measures_nothing_twice(agent: tuple[psutil.Process, str]) -> None:
    with network(agent[1]) as wire, AgentClient(wire.url, processes.TOKEN) as client:
        results: list[Measurement] = []
        with client.lease(ttl_s=20.0):
            for result in client.measure(jobs(12), SLOW):
                results.append(result)
                if len(results) in (3, 7):
                    wire.cut()
                    threading.Timer(1.5, wire.mend).start()
            done = client.progress(0).done
    assert [result.key for result in results] == [f"{index}" for index in range(12)]
    assert {result.state for result in results} == {"ok"}
    assert done == 12


def test_what_was_measured_while_the_network_was_cut_is_there_at_once(agent: tuple[psutil.Process, str]) -> None:
    with network(agent[1]) as wire, AgentClient(wire.url, processes.TOKEN) as client, client.lease(ttl_s=60.0):
        numbers = client.submit(jobs(4), SLOW)
        wire.cut()
        with AgentClient(agent[1], processes.TOKEN) as direct:
            direct._lease = client._lease
            assert processes.soon(lambda: direct.progress(numbers[0]).done == 4)
        wire.mend()
        assert [result.key for result in client.results(numbers)] == ["0", "1", "2", "3"]


@pytest.mark.long
def test_a_network_that_stays_cut_is_an_error_and_the_device_is_free_again(agent: tuple[psutil.Process, str]) -> None:
    received: list[str] = []

    def measure() -> None:
        with network(agent[1]) as wire, AgentClient(wire.url, processes.TOKEN) as client, client.lease(ttl_s=8.0):
            for result in client.measure([*jobs(3), models.endless("ncnn", "endless")], SLOW):
                received.append(result.key)
                if len(received) == 3:
                    wire.cut()

    with pytest.raises(AgentError, match="not reachable"):
        measure()
    assert received == ["0", "1", "2"]
    with AgentClient(agent[1], processes.TOKEN) as client, client.lease(wait_s=120.0):
        rest = [result.key for result in client.measure(jobs(12)[3:])]
    assert rest == [f"{index}" for index in range(3, 12)]


def test_a_full_disk_is_named_and_the_agent_goes_on_when_there_is_room(agent: tuple[psutil.Process, str]) -> None:
    """The limit on the size of files stands for the disk: writing fails in the middle of an upload."""
    process, url = agent
    previous = process.rlimit(psutil.RLIMIT_FSIZE)
    with AgentClient(url, processes.TOKEN) as client, client.lease():
        (before,) = client.measure(jobs(1))
        process.rlimit(psutil.RLIMIT_FSIZE, (MIB, previous[1]))
        client._transport.patience_s = 0.0
        with pytest.raises(AgentError, match="the disk of the device is full"):
            list(client.measure([large("large")]))
        (small,) = client.measure(jobs(1, "small"))
        process.rlimit(psutil.RLIMIT_FSIZE, previous)
        (after,) = client.measure([large("large")])
    assert [result.state for result in (before, small, after)] == ["ok", "ok", "ok"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system of its own takes the right to mount (root)")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.long
def test_models_share_a_small_disk_one_after_the_other(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve models of 1.2 MB on 4 MiB: those that nobody needs any more make room."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(small_disk))
    with processes.started() as (_, printed), AgentClient(printed["agent ready"], processes.TOKEN) as client:
        monkeypatch.delenv("TMPDIR")
        with client.lease():
            results: list[Measurement] = []
            for first in range(0, 12, 2):
                results += client.measure([large(f"{seed}", seed) for seed in range(first, first + 2)])
            filler = small_disk / "filler"
            with pytest.raises(OSError, match="No space"):
                filler.write_bytes(os.urandom(8 * MIB))
            results += client.measure([large("in the place of others", 12)])
            huge = models.convolution("ncnn", "huge", channels_in=290, channels_out=290, size=2)
            client._transport.patience_s = 0.0
            with pytest.raises(AgentError, match="the disk of the device is full"):
                list(client.measure([huge]))
            filler.unlink()
            results += client.measure([huge])
    assert [result.key for result in results] == [*map(str, range(12)), "in the place of others", "huge"]
    assert {result.state for result in results} == {"ok"}


@pytest.mark.long
def test_an_operator_that_crashes_the_runtime_is_named_and_the_others_are_measured() -> None:
    with local_agent("ncnn") as client, client.lease():
        results = list(client.measure([*jobs(2), crashing("bad"), *jobs(2, "after ")]))
    assert [result.key for result in results] == ["0", "1", "bad", "after 0", "after 1"]
    assert [result.state for result in results] == ["ok", "ok", "failed", "ok", "ok"]
    assert results[2].reason is not None
    assert results[2].reason.startswith("the runtime crashed (SIGSEGV")


@pytest.mark.long
def test_a_device_that_is_too_slow_for_one_operator_names_it_and_goes_on() -> None:
    """The jobs behind it have waited for longer than the limit, which counts from their own start."""
    with local_agent("ncnn", options=["--wall-limit-s", "6"]) as client, client.lease():
        numbers = client.submit([*jobs(1), models.endless("ncnn", "too slow"), *jobs(1, "after ")])
        results = list(client.results(numbers))
    assert [result.state for result in results] == ["ok", "failed", "ok"]
    assert results[1].reason == "wall-clock limit: not finished after 6 s"


@pytest.mark.long
def test_two_clients_at_once_measure_one_after_the_other(agent: tuple[psutil.Process, str]) -> None:
    intervals: list[tuple[float, float]] = []
    found: dict[str, list[str]] = {}

    def measure(name: str) -> None:
        with AgentClient(agent[1], processes.TOKEN) as client, client.lease(wait_s=300.0):
            start_s = time.monotonic()
            found[name] = [result.key for result in client.measure(jobs(6, name), SLOW)]
            intervals.append((start_s, time.monotonic()))

    threads = [threading.Thread(target=measure, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: [f"{name}{index}" for index in range(6)] for name in ("a", "b", "c")}
    ordered = sorted(intervals)
    assert all(first[1] <= second[0] for first, second in pairwise(ordered))


@pytest.mark.long
def test_an_agent_that_cannot_start_its_runtime_again_blames_no_operator(agent: tuple[psutil.Process, str]) -> None:
    """Without processes to start, the agent waits and says why; with them, every job is measured."""
    process, url = agent
    previous = process.rlimit(psutil.RLIMIT_NOFILE)
    with AgentClient(url, processes.TOKEN) as client, client.lease():
        list(client.measure(jobs(1)))
        numbers = client.submit([models.endless("ncnn", "endless"), *jobs(3)], SLOW)
        assert processes.soon(lambda: client.progress(numbers[0]).state == "running")
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 1, previous[1]))
        client.cancel(numbers[0])
        results = client.results(numbers)
        assert next(results).reason == "cancelled by the client"
        client._transport.patience_s = 0.0
        with pytest.raises(AgentError, match=r"the agent cannot measure: .*Too many open files"):
            next(results)
        process.rlimit(psutil.RLIMIT_NOFILE, previous)
        client._transport.patience_s = 120.0
        assert [result.state for result in client.results(numbers[1:])] == ["ok"] * 3

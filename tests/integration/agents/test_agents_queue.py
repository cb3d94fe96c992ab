"""The queue of a real agent: progress, cancelling, back-pressure, reconnecting, the end of a lease."""

import secrets
from collections.abc import Iterator

import psutil
import pytest

from profiling_agents.client import AgentClient, AgentError, MeasureSettings, ModelJob, local_agent
from profiling_agents.messages import MIB, JobsQueued, JobsRequest
from profiling_agents.serving.job_queue import MAX_JOBS
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.agents.long_queue import QUICK, measure_queue

SLOW = MeasureSettings(time_cap_ms=300.0, confidence=1e-6, patience=0.0)


@pytest.fixture
def leased(ncnn_agent: AgentClient) -> Iterator[AgentClient]:
    with ncnn_agent.lease():
        yield ncnn_agent


def jobs(count: int, backend: str = "ncnn") -> list[ModelJob]:
    return [models.convolution(backend, f"{index}") for index in range(count)]


def process_of(client: AgentClient) -> psutil.Process:
    """The service of an agent that this process started."""
    port = client.url.rpartition(":")[2]
    for one in psutil.Process().children():
        if "profiling_agents" in one.cmdline() and port in {str(c.laddr.port) for c in one.net_connections()}:
            return one
    raise AssertionError(f"no agent listens on port {port}")


def test_submitted_jobs_are_measured_without_anybody_waiting_for_them(leased: AgentClient) -> None:
    numbers = leased.submit(jobs(5))
    assert processes.soon(lambda: leased.progress(numbers[-1]).state == "done")
    results = list(leased.results(numbers))
    assert [(result.key, result.state) for result in results] == [(f"{index}", "ok") for index in range(5)]


def test_progress_tells_position_counts_and_the_rest(leased: AgentClient) -> None:
    first, third = (models.endless("ncnn", name) for name in ("first", "third"))
    second, last = jobs(2)
    numbers = leased.submit([first, second, third, last], SLOW)
    assert processes.soon(lambda: leased.progress(numbers[0]).state == "running")
    before = leased.progress(numbers[-1])
    assert (before.state, before.position, before.total - before.done, before.rest_s) == ("queued", 3, 4, None)
    leased.cancel(numbers[0])
    assert processes.soon(lambda: leased.progress(numbers[2]).state == "running")
    later = leased.progress(numbers[-1])
    assert (later.state, later.position, later.total - later.done) == ("queued", 1, 2)
    assert later.rest_s is not None
    assert later.rest_s > 0


def test_a_cancelled_job_says_so_and_the_others_are_measured(leased: AgentClient) -> None:
    endless, *others = [models.endless("ncnn", "endless"), *jobs(3)]
    numbers = leased.submit([endless, *others])
    leased.cancel(numbers[2])
    assert processes.soon(lambda: leased.progress(numbers[0]).state == "running")
    leased.cancel(numbers[0])
    results = list(leased.results(numbers))
    assert [result.state for result in results] == ["failed", "ok", "failed", "ok"]
    assert {result.reason for result in results if result.state == "failed"} == {"cancelled by the client"}
    assert leased.cancel(numbers[1]).state == "done"


def test_results_are_there_for_whoever_reads_again_from_where_it_stopped(leased: AgentClient) -> None:
    numbers = leased.submit(jobs(6))
    stream = leased.results(numbers)
    before = [next(stream), next(stream)]
    stream.close()
    again = list(leased.results(numbers[1:]))
    assert [result.key for result in again] == ["1", "2", "3", "4", "5"]
    assert again[0] == before[1]
    with pytest.raises(AgentError, match="results from number 0: those from 1 to 6 can be had"):
        list(leased.results(numbers))


def test_a_batch_that_is_sent_twice_is_queued_once(leased: AgentClient) -> None:
    (job,) = jobs(1)
    leased._upload(job, job.message())
    request = JobsRequest(batch=secrets.token_hex(16), jobs=(job.message(),)).model_dump_json().encode()
    first, second = (JobsQueued.model_validate_json(leased._send("POST", "/v1/jobs", request)) for _ in range(2))
    assert first == second == JobsQueued(first=0, next=1)


def test_the_end_of_a_lease_stops_what_runs_and_drops_what_waits(ncnn_agent: AgentClient) -> None:
    lease = ncnn_agent._acquire(6.0, 0.0)
    ncnn_agent._lease = lease
    try:
        ncnn_agent._uploaded.clear()
        ncnn_agent.submit([models.endless("ncnn", "endless"), *jobs(3)])
        assert processes.soon(lambda: ncnn_agent.progress(0).state == "running")
        assert processes.soon(lambda: bool(process_of(ncnn_agent).children())), "what runs models may be started anew"
        (worker,) = process_of(ncnn_agent).children()
        assert processes.soon(lambda: processes.has_ended(worker))
        with pytest.raises(AgentError, match="no valid lease"):
            ncnn_agent.progress(0)
    finally:
        ncnn_agent._lease = None
    with ncnn_agent.lease():
        with pytest.raises(AgentError, match="job 0: not in the queue"):
            ncnn_agent.progress(0)
        assert [result.key for result in ncnn_agent.measure(jobs(2))] == ["0", "1"]


@pytest.mark.long
def test_a_long_queue_keeps_memory_flat_loses_nothing_and_names_what_failed() -> None:
    """Ten thousand jobs: `python -m benchmarks.agent_queue`."""
    run = measure_queue(1_200)
    assert [result.key for result in run.results] == [f"{index}" for index in range(1_200)]
    assert {int(result.key) for result in run.results if result.state == "failed"} == run.failing
    assert all("blob 'elsewhere' is not in the model" in str(run.results[index].reason) for index in run.failing)
    assert run.done == run.last
    assert run.full_bytes < 8 * MIB, run.full_bytes / MIB
    assert run.after_bytes < 8 * MIB, run.after_bytes / MIB


@pytest.mark.long
def test_a_full_queue_says_so_and_takes_more_when_results_are_fetched() -> None:
    with local_agent("ncnn") as client, client.lease():
        (job,) = jobs(1)
        client._upload(job, job.message())

        def submit() -> JobsQueued:
            request = JobsRequest(batch=secrets.token_hex(16), jobs=(job.message(),) * 200, settings=QUICK)
            answer = client._send("POST", "/v1/jobs", request.model_dump_json().encode())
            return JobsQueued.model_validate_json(answer)

        client.submit([models.endless("ncnn", "endless")])
        for _ in range(MAX_JOBS // 200 - 1):
            submit()
        client._transport.patience_s = 0.0
        with pytest.raises(AgentError, match=rf"the queue is full: {MAX_JOBS - 199} jobs wait, .*; asked 4 times"):
            submit()
        client._drop()
        assert submit().first > 0

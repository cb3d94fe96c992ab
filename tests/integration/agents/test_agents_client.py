"""The client against real agents: leases, clear lines, and agents that end with their parents."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from profiling_agents.client import AgentBusyError, AgentClient, AgentError, local_agent
from tests.integration.agents.test_agents_queue import process_of
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.ports import refusing_port


@pytest.fixture
def second(ncnn_agent: AgentClient) -> Iterator[AgentClient]:
    """Another client of the same agent."""
    token = ncnn_agent._transport._http.headers["Authorization"].removeprefix("Bearer ")
    with AgentClient(ncnn_agent.url, token) as client:
        yield client


def test_a_second_client_is_locked_out_until_the_lease_ends(ncnn_agent: AgentClient, second: AgentClient) -> None:
    with ncnn_agent.lease():
        with pytest.raises(AgentBusyError, match="the device is leased by another client; free in at most"):
            list(second.measure([models.convolution("ncnn", "conv")]))
        assert second.capabilities().backend == "ncnn"
    (result,) = second.measure([models.convolution("ncnn", "conv")])
    assert result.state == "ok"


@pytest.mark.long
def test_a_lease_is_renewed_while_it_is_held(ncnn_agent: AgentClient, second: AgentClient) -> None:
    with ncnn_agent.lease(ttl_s=10.0):
        time.sleep(12.0)
        with pytest.raises(AgentBusyError), second.lease():
            pass


def test_a_lease_that_is_not_renewed_expires_and_its_holder_is_told(
    ncnn_agent: AgentClient, second: AgentClient
) -> None:
    ncnn_agent._lease = ncnn_agent._acquire(0.3, 0.0)
    try:
        with second.lease(wait_s=60.0), pytest.raises(AgentError, match="no valid lease"):
            list(ncnn_agent.measure([models.convolution("ncnn", "conv")]))
    finally:
        ncnn_agent._lease = None


@pytest.mark.long
def test_a_stream_that_is_left_stops_the_model_and_frees_the_device() -> None:
    with local_agent("ncnn", options=["--wall-limit-s", "600"]) as client:
        jobs = [models.convolution("ncnn", "first"), models.endless("ncnn", "endless")]
        stream = client.measure(jobs)
        assert next(stream).state == "ok"
        before = set(process_of(client).children())
        stream.close()
        (after,) = client.measure([models.convolution("ncnn", "after")])
        assert after.state == "ok"
        assert before
        assert processes.soon(lambda: not before & set(process_of(client).children())), "what ran the model was ended"


def test_wrong_token_is_one_line(ncnn_agent: AgentClient) -> None:
    with AgentClient(ncnn_agent.url, "wrong") as client, pytest.raises(AgentError) as caught:
        client.capabilities()
    assert str(caught.value) == (f"agent {ncnn_agent.url}: missing or wrong token; send 'Authorization: Bearer TOKEN'")


def test_unreachable_agents_are_one_line_after_some_attempts() -> None:
    with (
        refusing_port() as port,
        AgentClient(f"http://127.0.0.1:{port}", "token") as client,
        pytest.raises(AgentError, match=r"not reachable .*after 4 attempts"),
    ):
        client.capabilities()


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_unusable_addresses_are_one_line(url: str) -> None:
    with pytest.raises(AgentError, match="agent "), AgentClient(url, "token") as client:
        client.capabilities()


def test_contradicting_jobs_are_refused_before_they_travel(ncnn_agent: AgentClient) -> None:
    job = models.convolution("ncnn", "conv")
    wrong = models.ModelJob(
        key="conv", format="onnx", files=job.files, input_names=("in0",), input_shapes=(), output_names=("out0",)
    )
    with pytest.raises(AgentError, match=r"job 'conv': .*onnx takes 1 file"):
        list(ncnn_agent.measure([wrong]))


def test_an_unknown_backend_does_not_start() -> None:
    with pytest.raises(AgentError, match=r"local agent: .*invalid choice: 'tflite'"), local_agent("tflite"):
        pass


def test_the_token_is_not_on_the_command_line_and_not_in_the_child() -> None:
    with local_agent("ncnn") as client:
        token = client._transport._http.headers["Authorization"].removeprefix("Bearer ")
        commands = {one: processes.command_of(one) for one in psutil.Process().children(recursive=True)}
        agents = {one: words for one, words in commands.items() if "profiling" in " ".join(words)}
        assert len(agents) >= 2
        for words in agents.values():
            assert token not in " ".join(words)
        workers = [one for one, words in agents.items() if "profiling_agents.execution.worker" in words]
        assert workers
        assert all(token not in " ".join(one.environ().values()) for one in workers)


def test_a_local_agent_dies_with_its_parent() -> None:
    script = (
        "import sys, time, psutil\n"
        "from profiling_agents.client import local_agent\n"
        "with local_agent('ncnn'):\n"
        "    print(*[one.pid for one in psutil.Process().children(recursive=True)], flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    assert processes.soon(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

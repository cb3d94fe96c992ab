"""Devices that cannot be dialled: agents that pull their work from a real relay."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from profiling_agents import frames
from profiling_agents.client import AgentBusyError, AgentClient, AgentError, Measurement, MeasureSettings
from profiling_agents.network.guard import MAX_REQUESTS
from profiling_agents.serving import service
from tests.integration.agents.test_agents_cli import write_certificate
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.agents import relay_processes as relays

RUN_TOLERANCE = 1e-5
SLOW = MeasureSettings(time_cap_ms=200.0, confidence=1e-6, patience=0.0)
ROUTES = [route.replace("{number}", "0") for route in service.ROUTES] + ["/v1/pull", "/v1/answers"]
ABSENT = ["/", "/docs", "/v1", "/v1/pull/", "/v1/answers/0", "//v1/pull", "/v1/measure"]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECTED")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with relays.started_relay() as address, relays.started_puller(address):
        yield address


@pytest.fixture
def client(url: str) -> Iterator[AgentClient]:
    with AgentClient(url, processes.TOKEN) as one:
        yield one


@pytest.fixture(scope="module")
def lonely() -> Iterator[str]:
    """A relay that no device pulls from."""
    with relays.started_relay("--max-model-mib", "1") as address:
        yield address


def test_the_same_client_measures_and_runs_through_a_relay(client: AgentClient) -> None:
    assert client.capabilities().backend == "ncnn"
    job = models.convolution("ncnn", "conv", channels_in=5, channels_out=9, size=7, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 5, 7, 7), dtype=np.float32)
    with client.lease():
        (output,) = client.run(job, [x])
        results = list(client.measure([models.convolution("ncnn", f"{index}") for index in range(40)]))
    reference = models.convolution_reference(x, *models.convolution_weights(5, 9, seed=3))
    assert np.abs(output - reference).max() <= RUN_TOLERANCE * np.abs(reference).max()
    assert [result.key for result in results] == [f"{index}" for index in range(40)]
    assert {result.state for result in results} == {"ok"}


def test_results_come_one_by_one_through_a_relay(client: AgentClient) -> None:
    first, last = (models.convolution("ncnn", name) for name in ("first", "last"))
    with client.lease():
        numbers = client.submit([first, models.endless("ncnn", "endless"), last], SLOW)
        assert next(client.results(numbers)).state == "ok"
        assert client.progress(numbers[-1]).state == "queued"


def test_large_models_and_refusals_travel_through_a_relay(client: AgentClient) -> None:
    large = models.convolution("ncnn", "large", channels_in=600, channels_out=600, size=2)
    assert len(large.files[1]) > 12 << 20
    (result,) = client.measure([large])
    assert result.state == "ok"
    with pytest.raises(AgentError, match="no valid lease"):
        client.progress(0)


def test_two_clients_of_a_relay_do_not_measure_at_once(client: AgentClient, url: str) -> None:
    busy = pytest.raises(AgentBusyError, match="the device is leased by another client")
    with AgentClient(url, processes.TOKEN) as second, client.lease(), busy:
        list(second.measure([models.convolution("ncnn", "conv")]))


def workers(url: str) -> set[psutil.Process]:
    """What runs models on the devices that pull from a relay."""
    agents = (one for one in psutil.Process().children() if url in one.cmdline())
    return {worker for agent in agents for worker in agent.children()}


def test_a_stream_that_is_left_frees_the_device(client: AgentClient, url: str) -> None:
    stream = client.measure([models.convolution("ncnn", "first"), models.endless("ncnn", "endless")])
    assert next(stream).state == "ok"
    before = workers(url)
    stream.close()
    (after,) = client.measure([models.convolution("ncnn", "after")])
    assert after.state == "ok"
    assert before
    assert processes.soon(lambda: not before & workers(url)), "what ran the model was ended"


def test_a_relay_without_its_device_says_so(lonely: str) -> None:
    away = pytest.raises(AgentError, match="no device is connected to this relay; asked 4 times")
    with AgentClient(lonely, processes.TOKEN) as client, away:
        client.capabilities()


@pytest.mark.long
def test_a_device_that_dies_breaks_the_stream_and_another_one_takes_its_place() -> None:
    with relays.started_relay() as url, AgentClient(url, processes.TOKEN, patience_s=1.0) as client:
        jobs = [models.convolution("ncnn", f"{index}") for index in range(6)]
        received: list[Measurement] = []
        with relays.started_puller(url) as agent:

            def measure() -> None:
                with client.lease(ttl_s=10.0):
                    for measurement in client.measure([*jobs[:3], models.endless("ncnn", "endless")], SLOW):
                        received.append(measurement)
                        if len(received) == 3:
                            agent.kill()

            with pytest.raises(AgentError, match=r"asked|not reachable"):
                measure()
        assert [measurement.key for measurement in received] == ["0", "1", "2"]
        with relays.started_puller(url):
            rest = list(client.measure(jobs[3:6]))
        assert [measurement.key for measurement in rest] == ["3", "4", "5"]


@pytest.mark.long
def test_an_agent_finds_its_relay_again_after_it_was_away() -> None:
    with ExitStack() as agents:
        with relays.started_relay() as url:
            agents.enter_context(relays.started_puller(url))
        port = url.rpartition(":")[2]
        with relays.started_relay("--port", port), AgentClient(url, processes.TOKEN) as client:
            assert processes.soon(lambda: _answers(client))
            (result,) = client.measure([models.convolution("ncnn", "conv")])
    assert result.state == "ok"


def _answers(client: AgentClient) -> bool:
    try:
        return client.capabilities().backend == "ncnn"
    except AgentError:
        return False


@pytest.mark.parametrize("path", [*ROUTES, *ABSENT])
def test_no_route_of_a_relay_answers_without_a_token(lonely: str, path: str) -> None:
    with httpx.Client(base_url=lonely, timeout=120) as anonymous:
        assert {anonymous.request(method, path).status_code for method in METHODS} == {401}
        for headers in ({"Authorization": "Bearer wrong-token-0123456789"}, {"Origin": "http://evil.example"}):
            assert anonymous.get(path, headers=headers).status_code in (401, 403)
        assert anonymous.get(path, headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("path", ROUTES)
def test_a_relay_has_the_methods_of_an_agent_and_the_devices_two(lonely: str, path: str) -> None:
    allowed = {route.replace("{number}", "0"): set(methods) for route, methods in service.ROUTES.items()}
    allowed |= {"/v1/pull": {"GET"}, "/v1/answers": {"POST"}}
    with httpx.Client(base_url=lonely, headers={"Authorization": f"Bearer {processes.TOKEN}"}, timeout=120) as http:
        for method in set(METHODS) - allowed[path] - {"HEAD"}:
            assert http.request(method, path).status_code == 405
        for method in allowed[path] - {"GET"} if path == "/v1/pull" else allowed[path]:
            expected = {"/v1/answers": 410}.get(path, 503)
            assert http.request(method, path).status_code == expected


@pytest.mark.parametrize("path", ABSENT)
def test_a_relay_has_no_other_routes(lonely: str, path: str) -> None:
    with httpx.Client(base_url=lonely, headers={"Authorization": f"Bearer {processes.TOKEN}"}, timeout=120) as http:
        assert http.get(path, follow_redirects=False).status_code == 404


def test_bodies_past_the_relays_cap_are_refused(lonely: str) -> None:
    with httpx.Client(base_url=lonely, headers={"Authorization": f"Bearer {processes.TOKEN}"}, timeout=120) as http:
        assert http.post("/v1/models", content=bytes((1 << 20) + 1)).status_code == 413
        assert http.post("/v1/jobs", content=bytes((1 << 20) + 1)).status_code == 413


def test_answers_that_nobody_waits_for_are_refused(lonely: str) -> None:
    with httpx.Client(base_url=lonely, headers={"Authorization": f"Bearer {processes.TOKEN}"}, timeout=120) as http:
        answer = http.post("/v1/answers", content=b"x" * 100, headers={"Request": "0" * 32})
        assert answer.status_code == 410
        assert http.get("/v1/pull", headers={b"Wait-S": "\u00b2".encode()}).status_code == 204


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pull", "http://10.0.0.1:1"), "not encrypted; use https, or --insecure-bind"),
        (("--pull", "ftp://127.0.0.1"), "allowed: https://HOST:PORT"),
        (("--pull", "https://relay/with/path"), "allowed: https://HOST:PORT"),
        (("--pull", "https://relay:1", "--host", "0.0.0.0", "--insecure-bind"), "leave --host"),
        (("--pull", "https://relay:1", "--ca-file", "absent"), "--ca-file 'absent': cannot be used"),
    ],
)
def test_unsafe_ways_to_pull_are_refused(options: tuple[str, ...], message: str) -> None:
    assert message in processes.refused("--backend", "ncnn", *options)


@pytest.mark.long
def test_pulling_needs_the_relays_token(lonely: str) -> None:
    line = processes.refused("--backend", "ncnn", "--pull", lonely, token=None)
    assert "give the relay's with --token-file" in line
    line = processes.refused("--backend", "ncnn", "--pull", lonely, token="another-token-0123456789")
    assert f"relay {lonely}: missing or wrong token" in line


@pytest.mark.long
def test_a_relay_that_leaves_this_machine_needs_tls(tmp_path: Path) -> None:
    done = subprocess.run(
        relays.relay_command("--host", "0.0.0.0"), capture_output=True, text=True, env=processes.environment()
    )
    assert done.returncode == 2
    assert "not a loopback address; it takes --tls-cert" in done.stderr
    certificate, key = write_certificate(tmp_path)
    tls = ("--host", "0.0.0.0", "--tls-cert", str(certificate), "--tls-key", str(key))
    with relays.started_relay(*tls) as address:
        url = address.replace("0.0.0.0", "127.0.0.1")
        with (
            relays.started_puller(url, ["--ca-file", str(certificate)]),
            AgentClient(url, processes.TOKEN, ca_file=certificate) as client,
        ):
            (result,) = client.measure([models.convolution("ncnn", "conv")])
        assert result.state == "ok"


@pytest.mark.long
def test_clients_that_gave_up_take_no_places_of_others() -> None:
    """A device that goes on to pull, says that it works on all that it got, and answers nothing."""
    headers = {"Authorization": f"Bearer {processes.TOKEN}"}
    taken: list[str] = []
    with relays.started_relay() as url, httpx.Client(base_url=url, headers=headers, timeout=120) as http:

        def pull() -> None:
            answer = http.get("/v1/pull", headers={"Working": ",".join(taken)})
            assert answer.status_code in (200, 204), "no place is left"
            if answer.status_code == 200:
                header_bytes, _ = frames.LENGTHS.unpack(answer.content[: frames.LENGTHS.size])
                taken.append(json.loads(answer.content[frames.LENGTHS.size :][:header_bytes])["request"])

        for _ in range(2 * MAX_REQUESTS):
            pull()
            with pytest.raises(httpx.ReadTimeout):
                http.get("/v1/capabilities", timeout=0.1)
        pull()

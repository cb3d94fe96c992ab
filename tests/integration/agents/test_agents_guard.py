"""What the service refuses, asked with bare HTTP against a real agent."""

import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from profiling_agents.messages import MIB, JobMessage, JobsRequest, MeasureSettings
from profiling_agents.network.guard import HEAD_LIMIT_S, MAX_CONNECTIONS, MAX_REQUESTS
from profiling_agents.serving import service
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes

ROUTES = {
    "/v1/capabilities": {"GET", "HEAD"},
    "/v1/lease": {"POST", "PUT", "DELETE"},
    "/v1/models": {"POST"},
    "/v1/jobs": {"POST", "DELETE"},
    "/v1/jobs/0": {"GET", "HEAD", "DELETE"},
    "/v1/results/0": {"GET", "HEAD"},
    "/v1/run": {"POST"},
}
ABSENT = (
    "/v1/measure",
    "/v1/jobs/0/",
    "/v1/results",
    "/",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/v1",
    "/v1/lease/",
    "/v1/capabilities.json",
    "//v1/run",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECTED")
LOST_S = 12 * HEAD_LIMIT_S
"""Patience until a place is lost, on a machine that is busy, and stands still at times."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = ["--backend", "ncnn", "--port", "0", "--max-model-mib", "1", "--wall-limit-s", "20"]
    with processes.started(options) as (_, printed):
        yield printed["agent ready"]


@pytest.fixture
def anonymous(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {processes.TOKEN}"}, timeout=120) as client:
        yield client


@pytest.fixture
def lease(http: httpx.Client) -> Iterator[dict[str, str]]:
    granted = http.post("/v1/lease", json={"lease": "ab" * 16, "ttl_s": 30})
    assert granted.status_code == 200
    header = {"Lease": granted.json()["lease"]}
    yield header
    http.delete("/v1/lease", headers=header)


def error_of(response: httpx.Response) -> str:
    line = response.json()["error"]
    assert "\n" not in line
    return str(line)


@pytest.mark.parametrize("path", [*ROUTES, *ABSENT])
def test_no_route_and_no_method_answers_without_a_token(anonymous: httpx.Client, path: str) -> None:
    statuses = {method: anonymous.request(method, path).status_code for method in METHODS}
    assert set(statuses.values()) == {401}


@pytest.mark.parametrize("path", ROUTES)
def test_forgotten_verbs_are_refused_with_a_token_too(http: httpx.Client, path: str) -> None:
    with_numbers = {route.replace("{number}", "0"): set(handlers) for route, handlers in service.ROUTES.items()}
    assert with_numbers == {route: methods - {"HEAD"} for route, methods in ROUTES.items()}
    for method in set(METHODS) - ROUTES[path]:
        assert http.request(method, path).status_code == 405


@pytest.mark.parametrize("path", ABSENT)
def test_there_are_no_other_routes(http: httpx.Client, path: str) -> None:
    assert http.get(path, follow_redirects=False).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {processes.TOKEN}x"},
        {"Authorization": f"Bearer {processes.TOKEN[:-1]}"},
        {"Authorization": f"Basic {processes.TOKEN}"},
        {"Authorization": processes.TOKEN},
        {"Cookie": f"token={processes.TOKEN}"},
    ],
)
def test_wrong_tokens_and_other_places_for_it_are_refused(anonymous: httpx.Client, headers: dict[str, str]) -> None:
    response = anonymous.get("/v1/capabilities", headers=headers, params={"token": processes.TOKEN})
    assert response.status_code == 401
    assert "token" in error_of(response)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "10.0.0.7", "[::ffff", "", "127.0.0.1@evil"]
)
def test_foreign_hosts_are_refused(http: httpx.Client, host: str) -> None:
    assert http.get("/v1/capabilities", headers={"Host": host}).status_code == 403


def test_foreign_origins_are_refused(http: httpx.Client, url: str) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:3000", url.replace("http", "https")):
        assert http.get("/v1/capabilities", headers={"Origin": origin}).status_code == 403
    assert http.get("/v1/capabilities", headers={"Origin": url}).status_code == 200


@pytest.mark.parametrize("path", [*ROUTES, *ABSENT])
def test_foreign_hosts_and_origins_are_refused_on_every_route_and_method(http: httpx.Client, path: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        statuses = {method: http.request(method, path, headers=headers).status_code for method in METHODS}
        assert set(statuses.values()) == {403}


def test_websockets_are_refused(http: httpx.Client) -> None:
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "eA==",
        "Sec-WebSocket-Version": "13",
    }
    assert http.get("/v1/lease", headers=upgrade).status_code == 405


def test_a_body_past_the_cap_is_refused_and_memory_stays_flat(
    http: httpx.Client, lease: dict[str, str], url: str
) -> None:
    port = urlsplit(url).port
    (agent,) = [one for one in psutil.Process().children() if port in {c.laddr.port for c in one.net_connections()}]
    before = agent.memory_info().rss

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield bytes(MIB)

    declared = http.post("/v1/models", content=bytes(2 * MIB), headers=lease)
    assert declared.status_code == 413
    assert "1048576 bytes" in error_of(declared)
    chunked = http.post("/v1/models", content=endless(), headers=lease)
    assert chunked.status_code == 413
    assert http.post("/v1/jobs", content=bytes(2 * MIB), headers=lease).status_code == 413
    assert http.post("/v1/models", content=bytes(MIB), headers=lease).status_code == 201
    assert agent.memory_info().rss - before < 16 * MIB


def test_header_floods_are_refused(http: httpx.Client) -> None:
    many = {f"x-{number}": "1" for number in range(100)}
    assert http.get("/v1/capabilities", headers=many).status_code == 431
    assert http.get("/v1/capabilities", headers={"x": "y" * 100_000}).status_code == 400


def test_too_many_requests_at_once_are_refused_and_then_served_again(http: httpx.Client, url: str) -> None:
    address = urlsplit(url)
    request = (
        f"POST /v1/lease HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {processes.TOKEN}\r\n"
        "Content-Length: 10\r\n\r\n"
    )

    def one_more_is_refused() -> bool:
        """Beside as many that wait for their bodies, which lose their places after a while."""
        waiting = [socket.create_connection((address.hostname, address.port)) for _ in range(MAX_REQUESTS)]
        try:
            for connection in waiting:
                connection.sendall(request.encode())
            return processes.soon(lambda: http.get("/v1/capabilities").status_code == 429, within_s=2.0)
        finally:
            for connection in waiting:
                connection.close()

    assert processes.soon(one_more_is_refused)
    assert processes.soon(lambda: http.get("/v1/capabilities").status_code == 200)


def test_connections_that_bring_no_request_lose_their_place(http: httpx.Client, url: str) -> None:
    """Twice as many as there are places for those with a token, of whom nobody waits; one sends a byte now and then."""
    address = urlsplit(url)
    silent: list[socket.socket] = []
    try:
        for number in range(2 * MAX_CONNECTIONS):
            silent.append(socket.create_connection((address.hostname, address.port)))
            if number % 8 == 0:
                assert http.get("/v1/capabilities", headers={"Connection": "close"}).status_code == 200
        silent.reverse()
        slow = silent[0]
        slow.settimeout(0.05)
        start_s, ended = time.monotonic(), False
        while not ended and time.monotonic() - start_s < LOST_S:
            try:
                slow.sendall(b"G")
                ended = not slow.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended
        assert processes.soon(lambda: http.get("/v1/capabilities").status_code == 200)
    finally:
        for connection in silent:
            connection.close()


def test_a_refused_body_that_trickles_in_does_not_hold_its_connection(url: str) -> None:
    address = urlsplit(url)
    head = f"POST /v1/models HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401")

        def closed() -> bool:
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        assert processes.soon(closed, within_s=LOST_S)


def test_requests_that_take_longer_than_a_head_may_are_answered(http: httpx.Client, lease: dict[str, str]) -> None:
    job = models.convolution("ncnn", "slow", channels_in=32, channels_out=32, size=64)
    for content in job.files:
        assert http.post("/v1/models", content=content, headers=lease).status_code == 201
    settings = MeasureSettings(time_cap_ms=1e3 * (HEAD_LIMIT_S + 1), confidence=1e-9, patience=0.0, spread_limit=1e9)
    asked = JobsRequest(batch="0" * 32, jobs=(job.message(),), settings=settings).model_dump_json()
    assert http.post("/v1/jobs", content=asked, headers=lease).status_code == 202
    answer = http.get("/v1/results/0", headers=lease)
    assert (answer.status_code, '"state":"ok"' in answer.text) == (200, True)


def test_work_needs_a_lease(http: httpx.Client) -> None:
    for path in ("/v1/models", "/v1/jobs", "/v1/run"):
        for headers in ({}, {"Lease": "f" * 32}):
            response = http.post(path, content=b"x", headers=headers)
            assert response.status_code == 409
            assert "no valid lease" in error_of(response)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "A" * 64, "a" * 63, "", "token"])
def test_no_name_from_the_wire_touches_a_path(http: httpx.Client, lease: dict[str, str], name: str) -> None:
    job = models.convolution("ncnn", "conv").message().model_dump(mode="json") | {"files": [name, name]}
    response = http.post("/v1/jobs", json={"batch": "0" * 32, "jobs": [job]}, headers=lease)
    assert response.status_code == 422
    assert error_of(response).startswith("jobs.0.files.0: ")


def test_digests_that_were_not_uploaded_are_named(http: httpx.Client, lease: dict[str, str]) -> None:
    job: JobMessage = models.convolution("ncnn", "conv").message()
    content = JobsRequest(batch="0" * 32, jobs=(job,)).model_dump_json()
    response = http.post("/v1/jobs", content=content, headers=lease)
    assert response.status_code == 404
    assert tuple(response.json()["missing"]) == job.files


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/jobs", b"not json", 422),
        ("/v1/jobs", b'{"jobs": [], "more": 1}', 422),
        ("/v1/jobs", b'{"jobs": ' + b"[" * 100_000, 422),
        ("/v1/run", b"short", 400),
        ("/v1/run", b"\xff" * 64, 400),
        ("/v1/run", b"\0" * 12, 422),
    ],
)
def test_malformed_messages_get_one_line(
    http: httpx.Client, lease: dict[str, str], path: str, content: bytes, status: int
) -> None:
    response = http.post(path, content=content, headers=lease)
    assert response.status_code == status
    assert error_of(response)


def test_a_lease_request_with_unknown_fields_is_refused(http: httpx.Client) -> None:
    assert http.post("/v1/lease", json={"lease": "0" * 32, "ttl_s": 5, "force": True}).status_code == 422
    assert http.post("/v1/lease", json={"lease": "0" * 32, "ttl_s": 1e9}).status_code == 422


@pytest.mark.long_cases("\\u0663")
@pytest.mark.parametrize("number", ["-1", "x", "1e3", "9" * 16, "%2e%2e", "\u0663"])
def test_job_numbers_that_are_none_are_refused(http: httpx.Client, lease: dict[str, str], number: str) -> None:
    for method, path in (("GET", "/v1/jobs"), ("DELETE", "/v1/jobs"), ("GET", "/v1/results")):
        response = http.request(method, f"{path}/{number}", headers=lease)
        assert response.status_code == 404
        assert error_of(response)


@pytest.mark.long
def test_results_that_were_never_submitted_are_refused(http: httpx.Client, lease: dict[str, str]) -> None:
    response = http.get("/v1/results/3", headers=lease)
    assert response.status_code == 409
    assert "results from number 3: those from 0 to 0 can be had" in error_of(response)

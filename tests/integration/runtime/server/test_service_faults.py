"""Faults and attacks, each against a running service: nothing is lost, and each fault is one line."""

import asyncio
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from adaptive_runtime.server.answering import BODY_S
from adaptive_runtime.server.options import TOKEN_VARIABLE
from adaptive_runtime.server.protocol import MOST_SAMPLES
from adaptive_runtime.server.recent import FILE
from profiling_agents.network.guard import HEAD_LIMIT_S
from tests.support.runtime.failing_variant import CRASHES_FROM, make_first_fail
from tests.support.runtime.service_process import (
    AUTHORIZATION,
    COMMAND,
    INFER,
    TOKEN,
    Served,
    ask,
    body,
    burst,
    error_of,
    images,
    refused,
    served,
    soon,
)
from tests.support.threads import beside

PATIENT_MS = 300_000
AT_ONCE = 2000
NOT_WRITTEN = (
    "a restart would forget the choice",
    "files are loaded as they are",
    "a SubNet that crashes is not noticed",
)
"""What a service tells that can write nothing."""
FIRST_ANSWER_CPU_S = 10.0
"""Processor time of a start and its first answer, several times that of a free machine of today."""
YEAR_S = 365 * 86_400
JUMPING = f"""
import sys, time
real = time.time
time.time = lambda: real() + ({YEAR_S} if int(real() * 5) % 2 else -{YEAR_S})
from adaptive_runtime.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command with a wall clock that jumps by two years, there and back, five times a second."""


@pytest.fixture(scope="module")
def service(plain_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for the tests that leave it as it is. Two requests may wait."""
    log = tmp_path_factory.mktemp("log") / "log"
    with served(plain_bundle, log, "--queue", "2", "--deadline-ms", str(PATIENT_MS)) as found:
        yield found


def digests(folder: Path) -> list[str]:
    return [one["digest"] for one in json.loads((folder / "bundle.json").read_text())["subnets"]]


def test_after_kill_9_the_same_choice_answers_soon(copy: Path, tmp_path: Path) -> None:
    first, second = make_first_fail(copy)
    options = ("--state", str(tmp_path / "state"))
    with served(copy, tmp_path / "log", *options) as service:
        assert ask(service, images())["subnet"] == first
        assert ask(service, images(value=CRASHES_FROM))["subnet"] == second
        assert soon(lambda: second in (tmp_path / "state" / FILE).read_text())
        service.process.kill()
        service.process.wait()
    with served(copy, tmp_path / "log2", *options) as service:
        assert ask(service, images())["subnet"] == second
        used = psutil.Process(service.process.pid).cpu_times()
        assert service.state()["model"]["serving"]["digest"] == second
        assert service.lines() == []
    assert used.user + used.system <= FIRST_ANSWER_CPU_S


def test_a_damaged_memory_of_the_choice_is_one_line(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / FILE).write_bytes(b'{"version":1,"bun')
    with served(copy, tmp_path / "log", "--state", str(tmp_path / "state")) as service:
        assert ask(service, images())["subnet"] == digests(copy)[0]
        (line,) = service.lines()
        assert "is damaged" in line
        assert soon(lambda: digests(copy)[0] in (tmp_path / "state" / FILE).read_text())


def test_a_corrupt_bundle_does_not_start(copy: Path) -> None:
    (copy / "bundle.json").write_bytes(b'{"version": 2')
    assert "is no JSON" in refused("serve", str(copy), "--port", "0")


def test_a_file_that_is_cut_off_does_not_start(copy: Path) -> None:
    file = copy / f"{digests(copy)[0]}.onnx"
    file.write_bytes(file.read_bytes()[:-1])
    assert "bytes; allowed:" in refused("serve", str(copy), "--port", "0")


def test_a_corrupt_subnet_is_taken_out_and_the_others_serve(copy: Path, tmp_path: Path) -> None:
    first, second = digests(copy)
    file = copy / f"{first}.onnx"
    file.write_bytes(b"x" * file.stat().st_size)
    with served(copy, tmp_path / "log") as service:
        assert ask(service, images())["subnet"] == second
        assert list(service.state()["model"]["taken_out"]) == [first]
        (line,) = service.lines()
        assert line.startswith(f"SubNet {first} is taken out: ")


@pytest.mark.long
def test_files_that_are_removed_while_serving_stop_nothing(copy: Path, tmp_path: Path) -> None:
    with served(copy, tmp_path / "log") as service:
        before = ask(service, images())
        assert soon(lambda: is_removed(copy))
        after = [ask(service, images()) for _ in range(20)]
        assert {one["subnet"] for one in after} == {before["subnet"]}
        assert service.http.get("/v2/health/ready").status_code == 200
        assert service.http.get("/state").status_code == 200


def is_removed(folder: Path) -> bool:
    """Whether a folder is gone, in which the service may be preparing files."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def no_room() -> None:
    """Every write to a file fails from now on, as on a full disk; the log of the service is such a file, too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_full_disk_stops_no_answer(copy: Path, tmp_path: Path) -> None:
    with served(copy, tmp_path / "log-of-nothing", "--state", str(tmp_path / "state"), before=no_room) as service:
        assert {ask(service, images())["subnet"] for _ in range(20)} == {digests(copy)[0]}
        time.sleep(1.0)  # the service tries to write again and again
        assert service.http.get("/v2/health/ready").status_code == 200
        assert not (tmp_path / "state" / FILE).exists()
        assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.long
def test_a_full_disk_is_one_line_for_each_thing_that_is_not_written(copy: Path, tmp_path: Path) -> None:
    words = [*COMMAND, "serve", str(copy), "--port", "0", "--state", str(tmp_path / "state")]
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=no_room
    ) as process:
        lines = list[str]()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)

        assert process.stdout is not None
        with beside(read):
            try:
                assert process.stdout.readline().startswith("service ready: ")
                assert soon(lambda: all(any(one in line for line in tuple(lines)) for one in NOT_WRITTEN))
                time.sleep(1.0)  # it tries to write again and again
            finally:
                process.terminate()
    assert [sum(one in line for line in lines) for one in NOT_WRITTEN] == [1, 1, 1]
    assert len(lines) == 3


def test_without_room_for_a_token_the_service_does_not_start(copy: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    words = [*COMMAND, "serve", str(copy), "--port", "0"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, preexec_fn=no_room, timeout=300, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "token: cannot be written" in done.stderr
    assert "give --token-file" in done.stderr


@pytest.mark.long
def test_a_wall_clock_that_jumps_changes_nothing(copy: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-c", JUMPING)
    with served(copy, tmp_path / "log", command=command) as service:
        for _ in range(30):
            found = ask(service, images(), deadline_ms=PATIENT_MS)
            assert "late_ms" not in found
            assert 0 < found["latency_ms"] < PATIENT_MS
            time.sleep(0.02)
        state = service.state()
        assert all(0 <= one["age_s"] < 1e-3 * YEAR_S for one in state["answers"])
        assert 0 < state["uptime_s"] < 1e-3 * YEAR_S
        assert state["outcomes"] == {"answered": 30}
        assert service.lines() == []


def test_of_thousands_of_requests_at_once_each_is_answered_or_refused(service: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(AT_ONCE, hard // 2)
    sent = body(images(), deadline_ms=PATIENT_MS)
    before = Counter(service.state()["outcomes"])
    try:
        found = asyncio.run(burst(service.url, count, sent["content"], {**AUTHORIZATION, **sent["headers"]}))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.total() == count
    assert set(found) <= {200, 429}
    assert found[200] >= 3
    counted = Counter(service.state()["outcomes"]) - before
    assert counted == {name: value for name, value in {"answered": found[200], "rejected": found[429]}.items() if value}
    assert ask(service, images())
    assert service.lines() == []


def test_a_full_queue_says_when_to_come_again(service: Served) -> None:
    long = body(images(MOST_SAMPLES))

    def one_is_refused() -> bool:
        """Whether one of eight requests was; where they come one after another, none is."""
        found = list(pool.map(lambda _: service.http.post(INFER, **long), range(8)))
        refused = [response for response in found if response.status_code != 200]
        for response in refused:
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert "the queue is full" in error_of(response)
        assert len(refused) < len(found)
        return bool(refused)

    with ThreadPoolExecutor(8) as pool:
        assert soon(one_is_refused)


def test_an_answer_after_its_deadline_is_told_as_late(service: Served) -> None:
    deadlines_ms = cycle([100, 50, 20, 15, 10, 6, 4, 3])

    def is_late() -> bool:
        """Whether an answer was; on a slow machine it may be refused, as the request has not begun by then."""
        response = service.http.post(INFER, **body(images(MOST_SAMPLES), deadline_ms=next(deadlines_ms)))
        assert response.status_code in (200, 504)
        return response.status_code == 200 and response.json()["parameters"].get("late_ms", 0.0) > 0

    assert soon(is_late)
    assert service.state()["outcomes"]["late"] >= 1


def test_a_request_that_cannot_be_answered_in_time_is_refused(service: Served) -> None:
    long = body(images(MOST_SAMPLES))

    def one_is_refused() -> bool:
        """Whether a request behind long ones was; on a fast machine they may be over before it comes."""
        ahead = [pool.submit(service.http.post, INFER, **long) for _ in range(2)]
        response = service.http.post(INFER, **body(images(), deadline_ms=1))
        assert [one.result().status_code for one in ahead] == [200, 200]
        assert response.status_code in (200, 504)
        return response.status_code == 504 and "deadline" in error_of(response)

    with ThreadPoolExecutor(2) as pool:
        assert soon(one_is_refused)


def test_slow_clients_lose_their_place_and_nobody_waits_for_them(service: Served) -> None:
    parts = urlsplit(service.url)
    head = f"POST {INFER} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: {AUTHORIZATION['Authorization']}\r\n"
    silent = [socket.create_connection((parts.hostname, parts.port)) for _ in range(200)]
    slow_heads = [socket.create_connection((parts.hostname, parts.port)) for _ in range(50)]
    slow_bodies = [socket.create_connection((parts.hostname, parts.port)) for _ in range(2)]
    for one in slow_bodies:
        one.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
    end_s = time.monotonic() + max(HEAD_LIMIT_S, BODY_S) + 2
    answered_meanwhile = 0
    while time.monotonic() < end_s:
        for one in (*slow_heads, *slow_bodies):
            with_nobody_there(one.sendall, b"x")
        assert service.http.post(INFER, **body(images())).status_code == 200
        told, _, _ = select.select(slow_bodies, [], [], 0)
        answered_meanwhile += not told
        time.sleep(0.5)
    assert answered_meanwhile > 0, "before the slow ones have lost their places"
    for one in (*silent, *slow_heads):
        one.settimeout(60)
        assert with_nobody_there(one.recv, 100) in (b"", None)
    for one in slow_bodies:
        one.settimeout(60)
        assert one.recv(1000).startswith(b"HTTP/1.1 408 ")
    for one in (*silent, *slow_heads, *slow_bodies):
        one.close()


def with_nobody_there(call: Callable[[Any], Any], value: Any) -> Any:
    """What a call of a socket gives; None: the other side has closed it."""
    try:
        return call(value)
    except OSError:
        return None


def test_a_token_that_is_made_is_private_and_goes_with_the_service(copy: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    words = [*COMMAND, "serve", str(copy), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        file = Path(process.stdout.readline().removeprefix("service token: ").strip())
        url = process.stdout.readline().removeprefix("service ready: ").strip()
        assert file.stat().st_mode & 0o077 == 0
        headers = {"Authorization": f"Bearer {file.read_text().strip()}"}
        assert httpx.get(f"{url}/v2/health/ready", headers=headers, timeout=120).json() == {"ready": True}
        process.terminate()
        assert process.wait(60) == 0
    assert not file.exists()


def test_where_there_is_no_bundle_no_token_is_made(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    words = [*COMMAND, "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "bundle.json" in done.stderr


ROUTES = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/model", INFER, "/metrics", "/state", "/docs")
PAGE = ("/", "/page.js", "/page.css", "/plotly.js")


def test_without_the_token_nothing_is_told_but_the_empty_page(service: Served) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": AUTHORIZATION["Authorization"]}):
        for path in ROUTES:
            for method in ("GET", "POST", "DELETE"):
                response = httpx.request(method, service.url + path, headers=headers, timeout=120)
                assert response.status_code == 401
                assert "token" in error_of(response)
        for path in PAGE:
            response = httpx.get(service.url + path, headers=headers, timeout=120)
            assert response.status_code == 200
            assert digests_in(response.text, service) == []
            assert httpx.post(service.url + path, headers=headers, timeout=120).status_code == 401


def digests_in(text: str, service: Served) -> list[str]:
    return [one for one in service.state()["model"]["warm"] if one in text]


def test_pages_of_other_sites_and_other_names_are_refused(service: Served) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        for path in (*ROUTES, *PAGE):
            assert service.http.get(path, headers=headers).status_code == 403


def test_a_sensor_that_stalls_stops_no_answer(copy: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "device/sys/class/thermal/thermal_zone0/temp"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)  # nobody writes: reading it waits for ever
    with served(copy, tmp_path / "log", "--sensors-root", str(tmp_path / "device")) as service:
        told = "sensor 'temperature': no answer"
        assert soon(lambda: any(told in fault for fault in service.state()["load"]["faults"]))
        assert {ask(service, images())["subnet"] for _ in range(20)} == {digests(copy)[0]}
        time.sleep(1.5)
        assert sum(told in line for line in service.lines()) == 1, "told once, not with every sample"


def test_a_subnet_that_crashes_is_taken_out_and_its_request_is_answered(copy: Path, tmp_path: Path) -> None:
    first, second = make_first_fail(copy)
    with served(copy, tmp_path / "log", "--deadline-ms", str(PATIENT_MS)) as service:
        assert ask(service, images())["subnet"] == first
        assert ask(service, images(value=CRASHES_FROM))["subnet"] == second
        assert ask(service, images())["subnet"] == second
        state = service.state()
        assert list(state["model"]["taken_out"]) == [first]
        assert state["outcomes"] == {"answered": 3}
        steps = {(one["step"], one["name"]) for one in state["decisions"]}
        assert steps == {("start", first), ("switch", second), ("taken out", first)}
        lines = [line for line in service.lines() if "preparing it failed" not in line]
        assert len(lines) == 1
        assert lines[0].startswith(f"SubNet {first} is taken out: RuntimeError: Error in execution")


def test_where_no_subnet_is_left_the_service_says_so_and_is_not_ready(copy: Path, tmp_path: Path) -> None:
    make_first_fail(copy)
    no_folder = tmp_path / "file"
    no_folder.touch()
    words = ("--deadline-ms", str(PATIENT_MS), "--cache", str(no_folder))  # else files are being prepared meanwhile
    with served(copy, tmp_path / "log", *words) as service:
        assert ask(service, images())
        for file in copy.glob("*.onnx"):
            file.unlink()
        response = service.http.post(INFER, **body(images(value=CRASHES_FROM)))
        assert response.status_code == 503
        assert "no SubNet works" in error_of(response)
        assert service.http.get("/v2/health/ready").status_code == 503
        assert service.http.get("/v2/health/live").status_code == 200


def test_a_service_that_is_stopped_answers_what_it_has_accepted(copy: Path, tmp_path: Path) -> None:
    with served(copy, tmp_path / "log", "--deadline-ms", str(PATIENT_MS)) as service:
        sent = body(images(MOST_SAMPLES))
        sent["headers"] |= AUTHORIZATION
        found: list[int] = []

        def are_all_accepted() -> bool:
            """Whether all are answered, run or wait: while one waits, another one runs."""
            answered = len(found)  # before the others are counted, so that none counts twice
            waiting = service.state()["queue"]["depth"]
            return answered == 6 or (waiting > 0 and answered + waiting >= 5)

        def one() -> None:
            response = httpx.post(service.url + INFER, timeout=300, **sent)
            found.append(response.status_code)

        with beside(*[one] * 6):
            assert soon(are_all_accepted)
            service.process.send_signal(signal.SIGTERM)
        assert found == [200] * 6
        assert service.process.wait(60) == 0
        assert service.lines() == []

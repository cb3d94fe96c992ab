"""The C client of the local socket, compiled as C and as C++, beside real services and hostile ones."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from adaptive_runtime.cli import main
from adaptive_runtime.cli.client_source import SOURCES
from adaptive_runtime.server.inference import MOST_SAMPLES
from profiling_agents.messages import MIB
from tests.integration.runtime.server.test_local_socket import by_http
from tests.support.docs.documents import ROOT, blocks
from tests.support.runtime.c_client import (
    WARNINGS,
    CClient,
    client_object,
    client_program,
    client_source,
    compiled,
    sanitizer_flags,
)
from tests.support.runtime.fixtures import LOCAL_QUEUE, PATIENT, LocalServed
from tests.support.runtime.local_client import ANSWER, PREFIX, REFUSAL, REQUEST
from tests.support.runtime.service_process import SAMPLE, images, served, soon
from tests.support.threads import beside


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return sanitizer_flags(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return client_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def client(source: Path, sanitizers: tuple[str, ...]) -> Path:
    return client_object(source, sanitizers)


@pytest.fixture(scope="module")
def program(source: Path, client: Path, sanitizers: tuple[str, ...]) -> Path:
    return client_program(source, client, sanitizers)


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of images, the first ones of which are those of `images`."""
    file = tmp_path_factory.mktemp("values") / "images.f32"
    images(MOST_SAMPLES).tofile(file)
    return file


def test_the_sources_compile_without_a_warning_as_c_and_as_cpp(source: Path, client: Path) -> None:
    assert {file.name for file in SOURCES.iterdir()} <= {file.name for file in source.iterdir()}
    compiled("gcc", "-std=c99", "-O2", *WARNINGS, "-c", source / "autotailor_client.c", "-o", source / "optimised.o")
    compiled("g++", "-std=c++17", *WARNINGS, "-fsyntax-only", "-xc++", source / "autotailor_client.c")
    used = subprocess.run(["nm", "-g", "--defined-only", client], capture_output=True, text=True, check=True)
    named = {line.split()[-1] for line in used.stdout.splitlines()}
    assert {name for name in named if not name.startswith("autotailor_")} == set(), "no names but its own"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("kept")
    assert main(["client-source", str(tmp_path / "file")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"folder '{tmp_path / 'file'}': cannot be written" in told


def test_answers_in_c_are_those_by_http_to_the_last_bit(local: LocalServed, program: Path, values: Path) -> None:
    with CClient(program, values) as client:
        client.connect(local.path)
        found = client.answer("infer 3 0 -")
        logits, parameters = by_http(local.http, images(MOST_SAMPLES)[:3])
        assert np.array_equal(found.logits, logits)
        assert (found.subnet, found.exit) == (parameters["subnet"], parameters["exit"])
        assert not found.late
        (other,) = (one for one in subnets(local) if one != found.subnet)
        named = client.answer(f"infer 3 0 {other}")
        assert named.subnet == other
        assert not np.array_equal(named.logits, found.logits)


def subnets(local: LocalServed) -> list[str]:
    response = local.http.http.post("/v2/models/model/infer", content=b"")
    assert response.status_code == 400
    with local.client() as client:
        return client.ask(images(), subnet="none").line.partition("allowed: ")[2].split(", ")


def test_requests_in_c_are_on_their_way_together_and_waited_for_in_any_order(
    local: LocalServed, program: Path, values: Path
) -> None:
    with CClient(program, values) as client:
        client.connect(local.path)
        expected = {count: client.answer(f"infer {count} 0 -").logits for count in range(1, LOCAL_QUEUE)}
        ids = {count: client.tell(f"submit {count} 0 -") for count in expected}
        assert {status for status, _ in ids.values()} == {0}
        for count in reversed(ids):
            assert np.array_equal(client.answer(f"wait {ids[count][1]}").logits, expected[count])
        assert client.tell(f"wait {ids[1][1]}") == (400, "id: no request waits for an answer by this number")
        assert client.tell("close") == (0, "closed")


def test_what_goes_wrong_in_c_has_its_status_and_one_line(local: LocalServed, program: Path, values: Path) -> None:
    with CClient(program, values) as client:
        client.connect(local.path)
        for command, status, line in (
            ("infer 0 0 -", 400, "shape: a size of 0"),
            ("infer 257 0 -", 400, ""),
            ("infer 1 -5 -", 400, "deadline_ms: -5; allowed"),
            ("infer 1 nan -", 400, "deadline_ms: nan"),
            ("infer 1 0 none", 400, "subnet 'none'; allowed:"),
            (f"infer 1 0 {'f' * 65}", 400, "subnet: no digest; allowed: 1 to 64 characters"),
            ("infer 1 1e-3 -", 504, "deadline"),
        ):
            if command != "infer 257 0 -":  # it would read beyond the values
                assert client.tell(command)[0] == status, command
                assert line in client.tell(command)[1]

        def is_full() -> bool:
            """Whether some of many were refused; where they come slowly, all are answered."""
            found = [client.tell(f"submit {MOST_SAMPLES} 0 -") for _ in range(3 * LOCAL_QUEUE)]
            told = [client.tell(f"wait {number}") for _, number in found]
            assert {status for status, _ in told} <= {0, 429}
            assert all("the queue is full" in line for status, line in told if status == 429)
            return any(status == 429 for status, _ in told)

        assert soon(is_full)
        assert client.answer("infer 1 0 -").logits.shape == (1, 5)
        assert client.tell("close")[0] == 0
        assert client.tell(f"connect {local.path}x 100")[0] == 503
        assert client.tell("infer 1 0 -")[0] == 503
        assert client.tell("close")[0] == 0
        assert client.tell(f"connect {'x' * 200} 100") == (400, "path: empty, or too long for a socket")


@pytest.mark.long
def test_a_service_that_was_killed_is_gone_and_the_next_one_answers(
    plain_bundle: Path, program: Path, values: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    command = (sys.executable, "-c", PATIENT)
    with CClient(program, values) as client:
        with served(plain_bundle, tmp_path / "log", "--socket", str(path), command=command) as service:
            client.connect(path)
            before = client.answer("infer 2 0 -")
            service.process.kill()
            service.process.wait()
        assert path.is_socket(), "killed, it cannot tidy up"
        assert client.tell("infer 2 0 -")[0] == 503
        assert client.tell("close")[0] == 0
        status, line = client.tell(f"connect {path} 1000")
        assert status == 503
        assert "no service answers at the path" in line
        assert client.tell("close")[0] == 0
        with served(plain_bundle, tmp_path / "log2", "--socket", str(path), command=command) as service:
            client.connect(path)
            assert np.array_equal(client.answer("infer 2 0 -").logits, before.logits)
            numbers = [client.tell(f"submit {MOST_SAMPLES} 0 -")[1] for _ in range(3)]
            with CClient(program, values) as killed:
                killed.connect(path)
                killed.say(f"infer {MOST_SAMPLES} 0 -")
                killed.process.kill()
                assert killed.process.wait() == -9
                killed.process.returncode = 0
            service.process.terminate()
            assert [client.answer(f"wait {number}").logits.shape for number in numbers] == [(MOST_SAMPLES, 5)] * 3
            service.process.wait(60)  # until then it answers
            assert client.tell("infer 1 0 -")[0] == 503
            assert service.lines() == []
        assert not path.exists()


@contextmanager
def hostile(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[Path]:
    """A service that breaks the rules, for one connection."""
    path = folder / "hostile"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(120)

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(120)
                serve(connection)

        with beside(run):
            yield path


def taken(connection: socket.socket, count: int) -> None:
    """Read so many bytes."""
    while count:
        got = len(connection.recv(min(count, MIB)))
        assert got, "the client has gone"
        count -= got


ASKED = PREFIX.size + REQUEST.size + images().nbytes


def told(content: bytes, number: int = 1, kind: int = 2, **prefix: int) -> bytes:
    """A frame of a service."""
    size = prefix.get("size", len(content))
    return PREFIX.pack(b"ATLS", prefix.get("version", 1), kind, number, size) + content


def answer(samples: int = 1, classes: int = 2, text: bytes = b"net\0last\0", logits: int = 2) -> bytes:
    return ANSWER.pack(1.0, 2.0, 0.0, samples, classes, len(text)) + bytes(4 * logits) + text


HOSTILE = {
    "closes at once": (b"", "closed"),
    "no frame": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no frame of version 1"),
    "another version": (told(answer(), version=2), "no frame of version 1"),
    "an unknown kind": (told(answer(), kind=7), "unknown kind or size"),
    "2^62 bytes": (told(b"", size=2**62), "unknown kind or size"),
    "64 MiB and a byte": (told(b"", size=64 * MIB + 1), "unknown kind or size"),
    "a byte": (told(b"x"), "unknown kind or size"),
    "half an answer": (told(answer())[:-5], "closed"),
    "another number": (told(answer(), number=9), "a request that was not sent"),
    "number 0": (told(answer(), number=0), "a request that was not sent"),
    "more samples": (told(answer(samples=2)), "another size than it says"),
    "2^32 samples": (told(answer(samples=2**32 - 1, classes=2**32 - 1)), "another size than it says"),
    "more classes": (told(answer(classes=3)), "another size than it says"),
    "no logits": (told(answer(logits=0)), "another size than it says"),
    "no names": (told(answer(text=b"")), "without names"),
    "one name": (told(answer(text=b"net\0")), "without names"),
    "names without an end": (told(answer(text=b"net\0last")), "without names"),
}


@pytest.mark.parametrize(("content", "line"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_service_that_breaks_the_rules_is_gone_and_nothing_else_happens(
    content: bytes, line: str, program: Path, values: Path, tmp_path: Path
) -> None:
    def serve(connection: socket.socket) -> None:
        taken(connection, ASKED)
        connection.sendall(content)

    with hostile(tmp_path, serve) as path, CClient(program, values) as client:
        client.connect(path)
        status, got = client.tell("infer 1 0 -")
        assert status == 503
        assert line in got
        assert client.tell("infer 1 0 -") == (503, got), "it stays so"


def test_a_refused_connection_says_why(program: Path, values: Path, tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(told(REFUSAL.pack(429, 1000) + b"more than 64 connections", number=0, kind=3))

    with hostile(tmp_path, serve) as path, CClient(program, values) as client:
        client.connect(path)
        assert client.tell(f"infer {MOST_SAMPLES} 0 -") == (429, "more than 64 connections")


def test_a_silent_service_is_late_and_its_answer_is_waited_for_again(
    program: Path, values: Path, tmp_path: Path
) -> None:
    goes_on = threading.Event()

    def serve(connection: socket.socket) -> None:
        taken(connection, 2 * ASKED)
        goes_on.wait(120)
        for part in (told(answer(), number=1) + told(answer(), number=2))[:-1], b"\0":
            connection.sendall(part)
        connection.recv(1)

    with hostile(tmp_path, serve) as path, CClient(program, values) as client:
        client.connect(path, 50)
        assert client.tell("infer 1 0 -") == (504, "no answer within the client's timeout")
        status, number = client.tell("submit 1 0 -")
        assert (status, number) == (0, "2")
        assert client.tell("wait 2")[0] == 504
        goes_on.set()
        while (found := client.tell("wait 2"))[0] == 504:
            pass
        assert found[1].startswith("1 2 0 net last ")
        assert client.tell("wait 1")[0] == 400, "nobody knows it any more"
        client.tell("close")


def test_a_service_that_takes_nothing_is_gone(program: Path, values: Path, tmp_path: Path) -> None:
    done = threading.Event()

    def serve(connection: socket.socket) -> None:
        assert done.wait(120)

    with hostile(tmp_path, serve) as path:
        with CClient(program, values) as client:
            client.connect(path, 100)
            expected = (503, "the service takes no request within the timeout")
            assert client.tell(f"submit {MOST_SAMPLES} 0 -") == expected
        done.set()


def test_answers_are_taken_while_a_request_is_sent(program: Path, values: Path, tmp_path: Path) -> None:
    size, count = PREFIX.size + REQUEST.size + MOST_SAMPLES * images().nbytes, 3
    classes = 4096

    def serve(connection: socket.socket) -> None:
        taken(connection, size)
        names = b"net\0last\0" * MOST_SAMPLES  # more than buffers hold, before the next request is read
        connection.sendall(told(answer(MOST_SAMPLES, classes, names, MOST_SAMPLES * classes), number=1))
        for number in range(2, count + 1):
            taken(connection, size)
            connection.sendall(told(REFUSAL.pack(500, 0) + b"enough", number=number, kind=3))

    with hostile(tmp_path, serve) as path, CClient(program, values) as client:
        client.connect(path)
        assert [client.tell(f"submit {MOST_SAMPLES} 0 -") for _ in range(count)] == [(0, "1"), (0, "2"), (0, "3")]
        assert [client.tell(f"wait {number}") for number in (2, 3)] == [(500, "enough")] * 2
        assert client.answer("wait 1").logits.shape == (MOST_SAMPLES, classes)


@pytest.mark.long
def test_the_example_classifies_images_of_a_file(
    local: LocalServed, source: Path, client: Path, sanitizers: tuple[str, ...], tmp_path: Path
) -> None:
    text = (source / "classify.cpp").read_text()
    shown = [block.text for block in blocks(ROOT / "docs" / "runtime_service.md") if block.language == "cpp"]
    assert shown == [text]
    assert 30 <= text.count("\n") <= 60
    program = source / "classify"
    compiled("g++", "-std=c++11", *WARNINGS, *sanitizers, source / "classify.cpp", client, "-o", program)
    x = images(4)
    x.tofile(tmp_path / "x.f32")

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        every = [str(program), *map(str, words)]
        return subprocess.run(every, capture_output=True, text=True, timeout=300, check=False)

    done = run(local.path, tmp_path / "x.f32", *SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    logits, _ = by_http(local.http, x)
    assert [int(row[0]) for row in rows] == logits.argmax(axis=1).tolist()
    assert np.array_equal(np.array([row[1] for row in rows], np.float32), logits.max(axis=1))
    assert {(row[2], row[3]) for row in rows} == {(subnets(local)[0], "last")}
    done = run(local.path, tmp_path / "x.f32", 3, 17, 16)
    assert (done.returncode, done.stdout) == (2, "")
    done = run(tmp_path / "none", tmp_path / "x.f32", *SAMPLE)
    assert done.returncode == 1
    assert "no service answers at the path" in done.stderr

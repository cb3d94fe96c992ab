"""The local socket of a running service answers as its routes do, and what is wrong, slow or hostile costs nobody else."""

import os
import select
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptive_runtime
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.server.inference import MOST_SAMPLES
from adaptive_runtime.server.local import MOST_CLIENTS, MOST_PATH_BYTES, listening
from profiling_agents.messages import MIB
from tests.support.runtime.fixtures import LOCAL_QUEUE, LocalServed
from tests.support.runtime.local_client import PREFIX, REQUEST, LocalClient, request
from tests.support.runtime.service_process import INFER, SAMPLE, Served, body, error_of, images, refused, soon

NOBODY = 65534
MOST_GROWN_MIB = 64


def by_http(service: Served, x: np.ndarray, **parameters: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits and parameters of the answer to a request by HTTP; JSON has all digits of a float32."""
    answer = service.http.post(INFER, **body(x, **parameters)).raise_for_status().json()
    logits = next(one for one in answer["outputs"] if one["name"] == "logits")
    return np.array(logits["data"], np.float32).reshape(logits["shape"]), answer["parameters"]


def outcomes(local: LocalServed) -> Counter[str]:
    return Counter(local.http.state()["outcomes"])


def test_answers_are_those_of_http_and_of_the_model_to_the_last_bit(local: LocalServed) -> None:
    x = images(3)
    before = outcomes(local)
    with local.client() as client:
        found = client.ask(x)
    assert outcomes(local) - before == {"answered": 1}
    logits, parameters = by_http(local.http, x)
    with adaptive_runtime.load(local.bundle) as model:
        expected = model.infer(x)
    assert np.array_equal(found.logits, logits)
    assert np.array_equal(found.logits, expected.logits)
    assert (found.subnets, found.exits) == (expected.subnets, expected.exits)
    assert parameters["subnet"] == found.subnets[0]
    assert found.latency_ms > 0
    assert found.waited_ms >= 0
    assert found.late_ms == 0
    assert local.http.state()["answers"][-1]["subnet"] == found.subnets[0]


def test_a_named_subnet_answers_one_request_by_either_way(local: LocalServed) -> None:
    x = images(2)
    with adaptive_runtime.load(local.bundle) as model, local.client() as client:
        serving = client.ask(x).subnets[0]
        (other,) = (one.digest for one in model.subnets if one.digest != serving)
        found = client.ask(x, subnet=other)
        assert found.subnets == (other, other)
        assert np.array_equal(found.logits, model.infer(x, subnet=other).logits)
        logits, parameters = by_http(local.http, x, subnet=other)
        assert np.array_equal(found.logits, logits)
        assert parameters["subnet"] == other
        assert client.ask(x).subnets == (serving, serving)
        assert model.infer(x).subnets == (serving, serving)
    assert local.http.state()["model"]["switches"] == 0
    response = local.http.http.post(INFER, **body(x, subnet="none"))
    assert response.status_code == 404
    assert f"subnet 'none'; allowed: {serving}" in error_of(response)


def test_requests_on_their_way_are_answered_each_by_its_number(local: LocalServed) -> None:
    every = np.stack([images(value=value)[0] for value in np.linspace(-1, 1, LOCAL_QUEUE)])
    with local.client() as client:
        expected = client.ask(every).logits
        client.send(b"".join(request(every[at : at + 1], 7**at) for at in range(LOCAL_QUEUE)))
        found = {one.number: one for one in (client.answer() for _ in range(LOCAL_QUEUE))}
    assert len(np.unique(expected, axis=0)) == LOCAL_QUEUE
    for at in range(LOCAL_QUEUE):
        assert found[7**at].status == 200, found[7**at].line
        assert np.allclose(found[7**at].logits, expected[at : at + 1], rtol=1e-5, atol=1e-6)


def test_more_than_the_queue_holds_is_busy_and_counted(local: LocalServed) -> None:
    count = 3 * LOCAL_QUEUE
    frames = b"".join(request(images(MOST_SAMPLES), at + 1) for at in range(count))

    def is_full() -> bool:
        """Whether some were refused; where they come slowly, all are answered."""
        before = outcomes(local)
        with local.client() as client:
            client.send(frames)
            found = [client.answer() for _ in range(count)]
        assert sorted(one.number for one in found) == [*range(1, count + 1)]
        statuses = Counter(one.status for one in found)
        assert set(statuses) <= {200, 429}
        assert statuses[200] >= LOCAL_QUEUE
        assert all("the queue is full" in one.line for one in found if one.status == 429)
        expected = Counter({"answered": statuses[200], "rejected": statuses[429]})
        assert soon(lambda: outcomes(local) - before == +expected)
        return statuses[429] > 0

    assert soon(is_full)


def test_an_answer_after_its_deadline_is_told_as_late(local: LocalServed) -> None:
    deadlines_ms = cycle([100, 50, 20, 15, 10, 6, 4, 3])
    with local.client() as client:

        def is_late() -> bool:
            """Whether an answer was; on a slow machine it may be refused, as the request has not begun by then."""
            found = client.ask(images(MOST_SAMPLES), deadline_ms=next(deadlines_ms))
            assert found.status in (200, 504)
            return found.status == 200 and found.late_ms > 0

        assert soon(is_late)
    assert outcomes(local)["late"] >= 1


def test_a_request_that_cannot_be_answered_in_time_is_refused(local: LocalServed) -> None:
    long = [request(images(MOST_SAMPLES), at) for at in (1, 2)]
    with local.client() as client:

        def is_refused() -> bool:
            client.send(b"".join(long) + request(images(), 3, deadline_ms=1))
            found = {one.number: one for one in (client.answer() for _ in range(3))}
            assert found[1].status == found[2].status == 200
            return found[3].status == 504 and "deadline" in found[3].line

        assert soon(is_refused)


def frame(fields: bytes = b"", values: bytes = b"", **prefix: Any) -> bytes:
    """A frame with parts of a request changed."""
    size = len(fields) + len(values)
    magic, version, kind = prefix.get("magic", b"ATLS"), prefix.get("version", 1), prefix.get("kind", 1)
    return PREFIX.pack(magic, version, kind, 5, prefix.get("size", size)) + fields + values


def fields(shape: tuple[int, ...] = (1, *SAMPLE), deadline_ms: float = 0.0, subnet: bytes = b"") -> bytes:
    return REQUEST.pack(deadline_ms, *shape, subnet)


VALUES = images().tobytes()
BROKEN = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "no frame"),
    "pickled": (b"\x80\x04cposix\nsystem\n(S'exit'\ntR.", 400, "no frame"),
    "another version": (frame(fields(), VALUES, version=2), 400, "version 2; allowed: 1"),
    "an answer": (frame(fields(), VALUES, kind=2), 400, "kind 2; allowed: 1"),
    "2^63 bytes": (frame(size=2**63), 413, "9223372036854775808 bytes; allowed: at least 88, at most 8388608"),
    "a byte too many": (frame(size=8 * MIB + 1), 413, "8388609 bytes"),
}
"""What ends a connection: the next frame cannot be found any more."""
WRONG = {
    "nothing": (frame(), 400, "0 bytes; allowed: at least 88"),
    "no shape": (frame(b"x" * 20), 400, "20 bytes"),
    "no samples": (frame(fields((0, *SAMPLE))), 400, "[0, 3, 16, 16]; allowed: [N, 3, 16, 16], N from 1 to 256"),
    "too many samples": (frame(fields((257, *SAMPLE)), VALUES), 400, "[257, 3, 16, 16]"),
    "sizes of 2^32": (frame(fields((2**32 - 1,) * 4), VALUES), 400, "shape [4294967295, 4294967295,"),
    "too few values": (frame(fields(), VALUES[:-4]), 400, "3068 bytes of values; allowed for its shape: 3072"),
    "too many values": (frame(fields(), VALUES * 2), 400, "6144 bytes of values"),
    "a deadline below 0": (frame(fields(deadline_ms=-1), VALUES), 400, "deadline_ms: -1; allowed: above 0"),
    "a deadline of NaN": (frame(fields(deadline_ms=float("nan")), VALUES), 400, "deadline_ms: nan"),
    "an endless deadline": (frame(fields(deadline_ms=float("inf")), VALUES), 400, "deadline_ms: inf"),
    "another SubNet": (frame(fields(subnet=b"f" * 64), VALUES), 404, f"subnet '{'f' * 64}'; allowed: "),
    "no digest": (frame(fields(subnet=b"\0\xff\n"), VALUES), 400, "allowed: a digest"),
    "NaN": (frame(fields(), np.full(768, np.nan, np.float32).tobytes()), 400, "NaN or infinite"),
}
"""What is refused, and the next frame is read."""


@pytest.mark.parametrize(("content", "status", "line"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_frame_ends_the_connection_with_one_line(
    local: LocalServed, content: bytes, status: int, line: str
) -> None:
    before = outcomes(local)
    with local.client() as client:
        client.send(content)
        found = client.answer()
        assert found.status == status
        assert line in found.line
        assert "\n" not in found.line
        assert client.closed()
    with local.client() as client:
        assert client.ask(images()).status == 200
    assert outcomes(local) - before == {"refused": 1, "answered": 1}


@pytest.mark.parametrize(("content", "status", "line"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_is_one_line_and_the_next_one_is_answered(
    local: LocalServed, content: bytes, status: int, line: str
) -> None:
    with local.client() as client:
        client.send(content + request(images(), 6))
        first, second = sorted((client.answer(), client.answer()), key=lambda one: one.number)
    assert (first.number, first.status) == (5, status)
    assert line in first.line
    assert len(first.line) < 300
    assert (second.number, second.status) == (6, 200)


def test_lengths_take_no_memory_before_their_bytes_come(local: LocalServed) -> None:
    def peak_mib() -> float:
        told = Path(f"/proc/{local.http.process.pid}/status").read_text()
        return int(next(line for line in told.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024

    before_mib = peak_mib()
    size = 8 * MIB - REQUEST.size
    clients = [local.client() for _ in range(LOCAL_QUEUE)]
    for at, client in enumerate(clients):
        client.send(frame(fields((2**20, 2**20, 2**20, 8)), size=(2**40 + at if at % 2 else size)))
    assert all(client.answer().status in (400, 413) for client in clients)
    assert peak_mib() - before_mib < MOST_GROWN_MIB
    for client in clients:
        client.socket.close()


def test_frames_that_do_not_come_are_given_up_and_nobody_waits_for_them(impatient: LocalServed) -> None:
    whole = request(images())
    silent = impatient.client()

    def is_answered_before_they_are_given_up() -> bool:
        slow = [impatient.client() for _ in range(LOCAL_QUEUE)]
        for client, size in zip(slow, (1, 23, 24, 25, 111, 112, 113, len(whole) - 1), strict=True):
            client.send(whole[:size])
        with impatient.client() as client:
            assert client.ask(images()).status == 200
        given_up, _, _ = select.select([client.socket for client in slow], [], [], 0)
        for client in slow:
            found = client.answer()
            assert found.status == 408
            assert "was not there after 2 s" in found.line
            assert client.closed()
            client.socket.close()
        return not given_up

    assert soon(is_answered_before_they_are_given_up)
    assert silent.ask(images()).status == 200, "one that has begun nothing may be silent"
    silent.socket.close()


def test_a_client_that_takes_nothing_is_left(impatient: LocalServed) -> None:
    content = frame(fields((0, *SAMPLE))) * 100_000
    with impatient.client() as client, pytest.raises(ConnectionError):
        client.send(content)
    with impatient.client() as client:
        assert client.ask(images()).status == 200


def test_requests_of_a_client_that_has_gone_leave_the_queue(local: LocalServed) -> None:
    frames = b"".join(request(images(MOST_SAMPLES), at + 1) for at in range(LOCAL_QUEUE))

    def have_left() -> bool:
        """Whether some did; where the client goes late, all are answered by then."""
        before = outcomes(local)
        with local.client() as client:
            client.send(frames)
            assert client.answer().number == 1
        assert soon(lambda: local.http.state()["queue"]["depth"] == 0)
        counted = outcomes(local) - before
        assert set(counted) <= {"answered", "refused"}
        return counted["refused"] > 0

    assert soon(have_left)
    with local.client() as client:  # all places are free
        client.send(b"".join(request(images(), at + 1) for at in range(LOCAL_QUEUE)))
        assert {client.answer().status for _ in range(LOCAL_QUEUE)} == {200}


def test_more_connections_than_allowed_are_refused(local: LocalServed) -> None:
    clients: list[LocalClient] = []

    def is_full() -> bool:
        """With one more connection, once those of the tests before have ended."""
        client = local.client()
        try:
            answered = client.ask(images()).status == 200
        except ConnectionError:
            answered = False
        if answered:
            clients.append(client)
        else:
            client.socket.close()
        return len(clients) == MOST_CLIENTS

    assert soon(is_full)
    with local.client() as client:
        found = client.answer()
        assert (found.number, found.status) == (0, 429)
        assert f"more than {MOST_CLIENTS} connections" in found.line
        assert client.closed()
    clients.pop().socket.close()
    assert soon(is_full), "there is room again"
    for one in clients:
        one.socket.close()


@contextmanager
def as_user(user: int) -> Iterator[None]:
    own = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_the_socket_is_of_its_user_alone(local: LocalServed) -> None:
    assert stat.S_IMODE(local.path.stat().st_mode) == 0o600
    with as_user(NOBODY), pytest.raises(PermissionError):
        local.client()
    local.path.chmod(0o666)
    try:
        with as_user(NOBODY):
            client = local.client()
        with client:
            found = client.answer()
            assert (found.number, found.status) == (0, 400 + 3)
            assert f"user {NOBODY}: the socket is of user 0" in found.line
            assert client.closed()
    finally:
        local.path.chmod(0o600)


def test_a_socket_is_made_where_it_can_be_and_where_not_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):  # the second time in the place of a stale one
        with listening(path) as listener:
            assert listener is not None
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with (
                pytest.raises(AdaptiveError, match="another program answers there; end it, or choose"),
                listening(path),
            ):
                pass
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    path.unlink()
    path.write_text("kept")
    with pytest.raises(AdaptiveError, match=f"--socket '{path}': exists, and is no socket; choose"), listening(path):
        pass
    assert path.read_text() == "kept"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(AdaptiveError, match="exists, and is no socket"), listening(tmp_path / "link"):
        pass
    with pytest.raises(AdaptiveError, match="cannot be made"), listening(tmp_path / "none" / "socket"):
        pass
    long = tmp_path / ("x" * MOST_PATH_BYTES)
    with (
        pytest.raises(AdaptiveError, match=rf"the path has \d+ bytes; allowed: at most {MOST_PATH_BYTES}"),
        listening(long),
    ):
        pass


@pytest.mark.long
def test_services_do_not_take_the_socket_of_another_one(local: LocalServed) -> None:
    told = refused("serve", str(local.bundle), "--port", "0", "--socket", str(local.path))
    assert f"--socket '{local.path}': another program answers there" in told
    with LocalClient(local.path) as client:
        assert client.ask(images()).status == 200

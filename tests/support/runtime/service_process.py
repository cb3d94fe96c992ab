"""Services started by their command line, for tests that need the process itself, and requests for them."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import numpy as np

from adaptive_runtime.server.options import TOKEN_VARIABLE
from adaptive_runtime.server.protocol import LENGTH_HEADER, NamedTensor, pack

TOKEN = "a-token-for-these-tests-only"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
INFER = "/v2/models/model/infer"
COMMAND = (sys.executable, "-m", "adaptive_runtime")
SAMPLE = (3, 16, 16)


class Served(NamedTuple):
    """A running service: its process, its address, and the file that its lines for people go to."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    http: httpx.Client

    def lines(self) -> list[str]:
        """What it has told so far."""
        return self.log.read_text().splitlines()

    def state(self) -> dict[str, Any]:
        """The answer to /state."""
        found: dict[str, Any] = self.http.get("/state").raise_for_status().json()
        return found


@contextmanager
def served(
    bundle: Path,
    log: Path,
    *options: str,
    command: Sequence[str] = COMMAND,
    before: Callable[[], None] | None = None,
    by: Path | None = None,
) -> Iterator[Served]:
    """A service on a free port, terminated at the end if it is still there. before: called in its process.

    by: a Unix socket in place of the port. Its requests have minutes, unless the options say otherwise: this machine is busy,
    and stands still at times.
    """
    place = ("--port", "0") if by is None else ("--socket", str(by))
    words = [*command, "serve", str(bundle), *place, "--deadline-ms", "300000", *options]
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    with log.open("w") as told:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=told, text=True, env=environment, preexec_fn=before
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("service ready: "), f"it has not started: {log.read_text()}"
        url = line.removeprefix("service ready: ").strip()
        by_port = httpx.Client(base_url=url, headers=AUTHORIZATION, timeout=300) if by is None else None
        with by_port or by_socket(url.removeprefix("unix:")) as http:
            yield Served(process, url, log, http)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def by_socket(path: Path | str) -> httpx.Client:
    """A client of a service's Unix socket."""
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=300)


def refused(*words: str) -> str:
    """The one line of a command that does not start, which ends with 2."""
    environment = os.environ | {TOKEN_VARIABLE: TOKEN}
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def images(samples: int = 1, value: float | None = None) -> np.ndarray:
    """Images, random or of one value."""
    if value is not None:
        return np.full((samples, *SAMPLE), value, np.float32)
    return np.random.default_rng(0).standard_normal((samples, *SAMPLE)).astype(np.float32)


def body(x_NCHW: np.ndarray, **parameters: Any) -> dict[str, Any]:
    """Keywords of httpx for a request with a binary input."""
    head = {"parameters": parameters} if parameters else {}
    packed = pack(head, "inputs", [NamedTensor("input", x_NCHW, True)])
    return {"content": packed.content, "headers": {LENGTH_HEADER: str(packed.json_bytes)}}


def ask(service: Served, x_NCHW: np.ndarray, **parameters: Any) -> dict[str, Any]:
    """The parameters of an answer, which is there."""
    response = service.http.post(INFER, **body(x_NCHW, **parameters))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["parameters"]
    return found


def logits_of(http: httpx.Client, x: np.ndarray, **parameters: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits and parameters of an answer; JSON has all digits of a float32."""
    answer = http.post(INFER, **body(x, **parameters)).raise_for_status().json()
    logits = next(one for one in answer["outputs"] if one["name"] == "logits")
    return np.array(logits["data"], np.float32).reshape(logits["shape"]), answer["parameters"]


def error_of(response: httpx.Response) -> str:
    """The line of a refusal, which has nothing else."""
    content = response.json()
    assert set(content) == {"error"}
    line: str = content["error"]
    assert line
    assert "\n" not in line
    return line


def soon(condition: Callable[[], bool], within_s: float = 180.0) -> bool:
    """Whether something comes true in time."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


async def burst(url: str, count: int, content: bytes, headers: dict[str, str]) -> Counter[int]:
    """Statuses of requests that are all sent at once, each by a connection of its own."""
    parts = urlsplit(url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {INFER} HTTP/1.1\r\nHost: {parts.netloc}\r\n{lines}Content-Length: {len(content)}\r\n\r\n".encode()
    opened = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def one() -> int:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        opened.release()
        await go.wait()
        writer.write(head + content)
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    for _ in tasks:
        await opened.acquire()
    go.set()
    return Counter(await asyncio.gather(*tasks))

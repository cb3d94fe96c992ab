"""A bundle's service as a process of its own, which ends with this process, however that ends."""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.server import TOKEN_VARIABLE
from adaptive_runtime.server.inference import INPUT
from adaptive_runtime.server.protocol import LENGTH_HEADER
from adaptive_runtime.server.running import READY
from adaptive_runtime.server.tensors import NamedTensor, PackedBody, pack
from tasks.base.errors import UserError, shortened
from tasks.base.processes import end

INFER = "/v2/models/model/infer"
DEADLINE_MS = 60_000
END_S = 10.0
POLL_S = 0.25
UNCHANGED_S = 2.0
"""Time without changes [s] after which a service has loaded all SubNets that it has room for."""


class ServedAnswer(NamedTuple):
    """An answer to N images: for each its class, and the SubNet and the exit that gave it.
    latency_ms: in the model. round_trip_ms: from sending the request to its answer.
    """

    classes: tuple[int, ...]
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    latency_ms: float
    round_trip_ms: float


class AskedService:
    """A running service. page: the address of its live page, with the token."""

    def __init__(self, http: httpx.Client, page: str) -> None:
        self._http, self.page = http, page

    def ask(self, body: PackedBody) -> ServedAnswer:
        """The answer to images that `body_of` packed. UserError: the service refuses."""
        start_s = time.perf_counter()
        headers = {LENGTH_HEADER: str(body.json_bytes)}
        told = self._asked("POST", INFER, content=body.content, headers=headers)
        round_trip_ms = (time.perf_counter() - start_s) * 1e3
        facts, outputs = told["parameters"], {one["name"]: one["data"] for one in told["outputs"]}
        classes = tuple(outputs["classes"])
        subnets, exits = (_of_each(facts[name], len(classes)) for name in ("subnet", "exit"))
        return ServedAnswer(classes, subnets, exits, facts["latency_ms"], round_trip_ms)

    def settle(self, within_s: float) -> None:
        """Return when the service has loaded its SubNets ahead, or after this many seconds."""
        warm, since_s, end_s = None, time.monotonic(), time.monotonic() + within_s
        while time.monotonic() < min(since_s + UNCHANGED_S, end_s):
            now = self._asked("GET", "/state")["model"]["warm"]
            if now != warm:
                warm, since_s = now, time.monotonic()
            time.sleep(POLL_S)

    def _asked(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **given)
            found: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UserError("stress", f"the service does not answer ({shortened(error)})") from error
        if response.is_error:
            raise UserError("stress", f"the service refuses a request: {found.get('error', response.status_code)}")
        return found


@contextmanager
def bundle_service(bundle: Path, words: Sequence[str], ready_s: float) -> Iterator[AskedService]:
    """A service of a bundle with further words of `autotailor-runtime serve`. UserError: it does not become ready in time."""
    token = secrets.token_urlsafe(24)
    fixed = ["--port", "0", "--stop-with-stdin", "--deadline-ms", str(DEADLINE_MS)]
    command = [sys.executable, "-m", "adaptive_runtime", "serve", str(bundle), *fixed, *words]
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            env=os.environ | {TOKEN_VARIABLE: token},
        )
        try:
            url = _address(process, told, ready_s)
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=ready_s) as http:
                yield AskedService(http, f"{url}/#{token}")
        finally:
            end(process, END_S)
            if process.stdout is not None:
                process.stdout.close()


def _address(process: subprocess.Popen[bytes], told: IO[bytes], ready_s: float) -> str:
    """The address of a service, once it is ready."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], ready_s)[0]:
        raise UserError(
            "stress", f"the service was not ready within {ready_s:g} s", next_step="give more by stress.ready_s"
        )
    line = process.stdout.readline().decode().strip()
    if not line.startswith(READY):
        told.seek(0)
        last = told.read().decode(errors="replace").strip().splitlines()[-1:]
        raise UserError("stress", f"the service has not started: {last[0] if last else 'it tells no reason'}")
    return line.removeprefix(READY)


def _of_each(told: str, images: int) -> tuple[str, ...]:
    """A name for each image: a service reports a name only once if all images share it."""
    names = tuple(told.split(","))
    return names * images if len(names) == 1 else names


def body_of(x_NCHW: NDArray[np.float32]) -> PackedBody:
    """A request for images."""
    return pack({}, "inputs", [NamedTensor(INPUT, x_NCHW, binary=True)])

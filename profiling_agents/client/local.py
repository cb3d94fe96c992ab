"""A separate agent process on this machine that cannot outlive its parent."""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from profiling_agents.messages import AgentError
from profiling_agents.startup import READY, TOKEN_VARIABLE, python_path

if TYPE_CHECKING:
    from profiling_agents.client.agent import AgentClient

START_LIMIT_S = 180.0
STOP_LIMIT_S = 8.0
LOCAL_PATIENCE_S = 2.0
"""An agent on this machine that does not answer for this long has ended and will not come back."""


@contextmanager
def local_agent(
    backend: str = "ncnn",
    threads: int = 1,
    *,
    cores: Sequence[int] | None = None,
    options: Sequence[str] = (),
) -> Iterator["AgentClient"]:
    """An agent as a separate process on loopback with a random token, and its client; it ends with the block.

    It also ends when this process dies. `options`: further options of `autotailor agent`, for example limits.
    """
    from profiling_agents.client.agent import AgentClient

    with (
        start_local_agent(backend, threads, cores, options) as (url, token),
        AgentClient(url, token, patience_s=LOCAL_PATIENCE_S) as client,
    ):
        yield client


@contextmanager
def start_local_agent(
    backend: str, threads: int, cores: Sequence[int] | None, options: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(url, token) of an agent on a free loopback port. The token is passed in the environment."""
    token = secrets.token_hex(32)
    command = [
        sys.executable,
        "-P",
        "-m",
        "profiling_agents",
        "--backend",
        backend,
        "--threads",
        str(threads),
    ]
    command += ["--host", "127.0.0.1", "--port", "0", "--stop-with-stdin"]
    if cores is not None:
        command += ["--cores", ",".join(map(str, cores))]
    environment = os.environ | {TOKEN_VARIABLE: token, "PYTHONPATH": python_path(os.environ)}
    with tempfile.TemporaryFile() as errors:
        # stdin stays open as long as this process lives; the agent stops when it closes.
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
        try:
            yield wait_until_ready(process, errors, "local agent"), token
        finally:
            stop(process)


def wait_until_ready(process: subprocess.Popen[bytes], errors: IO[bytes], where: str) -> str:
    """The address that the agent prints when it listens; AgentError with the agent's own line when it does not start."""
    assert process.stdout is not None
    until = time.monotonic() + START_LIMIT_S
    readable, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    line = process.stdout.readline().decode() if readable else ""
    if line.startswith(READY):
        return line.removeprefix(READY).strip()
    if time.monotonic() >= until:
        raise AgentError(f"{where}: not ready after {START_LIMIT_S:g} s")
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise AgentError(f"{where}: printed '{line.strip()[:80]}' instead of its address") from error
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    raise AgentError(f"{where}: {said[-1] if said else f'ended with code {process.returncode}'}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end; kill it if it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        process.stdout.close()

"""A Prefect server for the duration of one command, for users without a server.

Prefect starts one by itself too, but that one survives if the command is killed. This one ends with its parent, listens on
loopback only, and requires a password that nobody else knows.
"""

import atexit
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import httpx

from flows.machine import in_turn, prefect_home, quick_imports, refuse_dead
from tasks.base.errors import UserError
from tasks.base.processes import end

START_SECONDS = 300
"""The first start makes the database: ten seconds of CPU time, or minutes on a busy machine."""
WAIT = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"
"""Prefect's own variable for such a wait; it also applies to servers of this module."""
OWN_SERVER = "start one yourself with 'prefect server start' and set PREFECT_API_URL"
PREFECTS_WORDS = "ephemeral Prefect API server"
STOP_SECONDS = 5
POLL_SECONDS = 0.1
DATABASE = "Prefect's database"
_STARTED: dict[str, subprocess.Popen[bytes]] = {}
"""The servers that this process has started, by address."""


def start_server() -> Callable[[], None]:
    """Start a temporary server, unless the environment names one or a Prefect home with its own settings.

    Call it before Prefect is first loaded. Prefect then finds the server in the environment and, at exit, sends its last logs
    before the server is stopped. Returns a function that waits until the server is ready, and raises UserError if it fails. A
    second call in this process starts no server, and waits for the same one.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        if url in _STARTED:
            return partial(wait_until_ready, _STARTED[url], url)
        refuse_dead("PREFECT_API_URL", url, "start that server, or unset it: then one is started for the command")
    if "PREFECT_API_URL" in os.environ or os.environ.get("PREFECT_HOME") != str(prefect_home()):
        return lambda: None
    start_seconds()
    prefect_home().mkdir(mode=0o700, exist_ok=True)
    password = f"autotailor:{secrets.token_hex(16)}"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flows.machine.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PREFECT_SERVER_API_AUTH_STRING": password},
        start_new_session=True,  # Ctrl-C in a terminal goes to the command, which then reports to the server
    )
    atexit.register(end, process, STOP_SECONDS)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline() or 0)}/api"
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": password}
    _STARTED[url] = process
    return partial(wait_until_ready, process, url)


def start_seconds() -> int:
    """The longest wait for a temporary server [s]. UserError if its variable is not a positive whole number."""
    if (given := os.environ.get(WAIT)) is None:
        return START_SECONDS
    if not given.isdecimal() or not int(given):
        raise UserError(WAIT, f"got '{given}'", allowed="seconds, 1 or more", next_step=f"set it to {START_SECONDS}")
    return int(given)


def slow_start(error: BaseException) -> UserError | None:
    """A line for Prefect's error about a self-started server that did not answer; None for other errors."""
    if not isinstance(error, RuntimeError) or PREFECTS_WORDS not in str(error):
        return None
    got = "ended while it started" if "exited with code" in str(error) else "did not answer in time"
    return UserError("Prefect server", got, next_step=_way_out())


def _way_out() -> str:
    return f"wait longer, as by {WAIT}={2 * start_seconds()}, or {OWN_SERVER}"


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a server answers; UserError if it has ended or takes too long."""
    seconds = start_seconds()
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(POLL_SECONDS)
    if process.poll() is None:
        raise UserError("Prefect server", f"did not answer within {seconds} s", next_step=_way_out())
    hint = f"look at the lines above, or {OWN_SERVER}"
    raise UserError("Prefect server", f"ended with code {process.returncode}", next_step=hint)


def _serve() -> None:
    """The child process: prints its port at once, then loads the server; ends when standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    with quick_imports():
        import uvicorn
        from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        """Servers that start together make the shared database one after the other."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with in_turn(DATABASE):
                await super().startup(sockets)

    app = create_app(ephemeral=True, final=True)
    Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


def _end_with_parent() -> None:
    """Stop when standard input closes: the parent has ended."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    _serve()

"""A Prefect server for the time of one command, for those who run none.

Prefect starts one by itself too, but that one lives on when the command is killed. This one ends with its parent,
listens on loopback only, and asks for a password that nobody else knows.
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

from flows.machine.environment import prefect_home
from flows.machine.imports import quick_imports
from flows.machine.locks import in_turn
from flows.machine.reachable import refuse_dead
from tasks.errors import UserError
from tasks.processes import end

START_SECONDS = 300
"""The first start makes the database: ten seconds of a core, which are minutes where others compute, too."""
STOP_SECONDS = 5
POLL_SECONDS = 0.1
DATABASE = "Prefect's database"
_STARTED: dict[str, subprocess.Popen[bytes]] = {}
"""The servers that this process has started, by address."""


def start_server() -> Callable[[], None]:
    """Start a temporary server, unless the environment names one or a Prefect home with settings of its own.

    Call it before the first import of Prefect, which then finds it in the environment and, at exit, sends its last
    logs before the server is stopped. Returns what waits until it is ready; that raises UserError when it fails. A second
    call in this process starts none, and waits for the same.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        if url in _STARTED:
            return partial(wait_until_ready, _STARTED[url], url)
        refuse_dead("PREFECT_API_URL", url, "start that server, or unset it: then one is started for the command")
    if "PREFECT_API_URL" in os.environ or os.environ.get("PREFECT_HOME") != str(prefect_home()):
        return lambda: None
    prefect_home().mkdir(mode=0o700, exist_ok=True)
    password = f"autotailor:{secrets.token_hex(16)}"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flows.machine.server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PREFECT_SERVER_API_AUTH_STRING": password},
        start_new_session=True,  # Ctrl-C in a terminal is for the command: it still tells the server how its run ended
    )
    atexit.register(end, process, STOP_SECONDS)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{int(process.stdout.readline() or 0)}/api"
    os.environ |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": password}
    _STARTED[url] = process
    return partial(wait_until_ready, process, url)


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Returns when a server answers; UserError where it has ended or takes too long."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(POLL_SECONDS)
    state = "is not ready" if process.poll() is None else f"ended with code {process.returncode}"
    hint = "look at the lines above, or start one yourself with 'prefect server start' and set PREFECT_API_URL"
    raise UserError("Prefect server", f"{state} after at most {START_SECONDS} s", next_step=hint)


def _serve() -> None:
    """The child: says its port at once, then loads the server; ends when standard input closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    with quick_imports():
        import uvicorn
        from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        """Servers of commands that start together make the database one after the other: they share it."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            with in_turn(DATABASE):
                await super().startup(sockets)

    app = create_app(ephemeral=True, final=True)
    Server(uvicorn.Config(app, log_level="error", lifespan="on")).run(sockets=[listener])


def _end_with_parent() -> None:
    """Standard input closes when the parent ends, however it ends."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    _serve()

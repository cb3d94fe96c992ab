"""The frame of every service around its routes: uvicorn behind the guard, a private folder, and a clean end by SIGTERM.

The server is patient with connections. The folder has the models, log and token of the service.
"""

import asyncio
import fcntl
import os
import resource
import select
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from profiling_agents.messages import AgentError
from profiling_agents.network.endpoint import Endpoint, is_loopback
from profiling_agents.network.guard import CONNECTION, HEAD_LIMIT_S, Guard, GuardRules, Places, TokenCheck

PREFIX = "autotailor-agent-"
LOCK_FILE = "lock"
"""The service holds this lock as long as it lives, however it ends."""
LEFT_S = 60.0
"""Only older folders are checked: a younger one may not be locked yet."""


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """On SIGTERM, leave the block as by an exception, with exit code 0."""
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def private_folder() -> Iterator[Path]:
    """A 0700 folder, removed when the service ends, also by SIGTERM. Folders of killed services are removed first."""
    _remove_left()
    with ended_by_signal():
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            os.close(lock)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.is_symlink():
            continue
        try:
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed meanwhile
            continue
        try:
            found = os.fstat(lock)
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > LEFT_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its service lives
            continue
        finally:
            os.close(lock)


class Ended(SystemExit):
    """A signal asked a service to end. User code that ends Python raises a plain SystemExit, which is reported as a fault."""


def _exit(number: int, frame: FrameType | None) -> None:
    raise Ended(0)


MAX_HEADER_BYTES = 32 << 10
STARTED_CHECK_S = 0.01


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with limited patience for silent or very slow connections. No token is known before a request."""

    _idle: asyncio.TimerHandle | None = None
    is_local = False
    """Whether the client came by a Unix socket, whose permissions are its guard."""

    def __init__(self, *, places: Places, **given: Any) -> None:
        """places: shared by all connections of the server. The guard finds the connection in the state of its requests."""
        super().__init__(**given)
        self._places = places
        self.app_state = {**self.app_state, CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self.is_local = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._places.enter(self)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting and free the place."""
        super().connection_lost(exc)
        self._places.leave(self)
        if self._idle is not None:
            self._idle.cancel()

    @property
    def is_silent(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def admit(self) -> bool:
        """Record that the connection has shown a token; False if all places of such connections are taken."""
        return self._places.admit(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, even if parts of this one are still arriving."""
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(HEAD_LIMIT_S, self._close_unless_at_work)

    def _close_unless_at_work(self) -> None:
        if self.is_silent:
            self.transport.close()


class PatientServer(uvicorn.Server):
    """A server with limited patience for TLS handshakes, too: asyncio's own limit is a minute. Unix sockets have no TLS."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn has no option for the time limit of a handshake, and none for sockets with and without TLS."""
        loop = asyncio.get_running_loop()
        listen = loop.create_server

        def as_meant(*given: Any, **options: Any) -> Any:
            if (given_socket := options.get("sock")) is not None and given_socket.family == socket.AF_UNIX:
                options["ssl"] = None
            limit_s = HEAD_LIMIT_S if options.get("ssl") is not None else None
            return listen(*given, ssl_handshake_timeout=limit_s, **options)

        loop.create_server = as_meant  # type: ignore[method-assign]
        try:
            await super().startup(sockets)
        finally:
            loop.create_server = listen  # type: ignore[method-assign]


def http_server(network: Endpoint, app: ASGIApp, token: str | TokenCheck, rules: GuardRules) -> uvicorn.Server:
    """The server of `app` behind the guard. AgentError for bad certificates."""
    any_address = network.host in ("", "0.0.0.0", "::")
    own = ("127.0.0.1", "localhost", "::1") if any_address or is_loopback(network.host) else ()
    hosts = frozenset(name.lower() for name in (*own, network.host, *network.allowed_hosts) if name)
    config = uvicorn.Config(
        Guard(app, token=token, hosts=hosts, any_address=any_address, rules=rules),
        http=partial(PatientProtocol, places=Places(rules.connections)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=rules.shutdown_s,
        ssl_certfile=network.tls_cert,
        ssl_keyfile=network.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"--tls-cert '{network.tls_cert}': cannot be used with its key ({error})") from error
    return PatientServer(config)


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files up to `count` as far as the system allows: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


async def serve_with(
    server: uvicorn.Server,
    listeners: Sequence[socket.socket],
    network: Endpoint,
    ready: str,
    *works: Coroutine[Any, Any, None],
) -> None:
    """Serve by bound sockets until stopped, with `works` beside it; the end or fault of one of them ends all.

    `ready` is printed once the server serves and signals stop it, even if they were ignored before (shell's background).
    At the end, works are cancelled in reverse order: each may need the works before it until it has ended.
    """

    def stop_with_stdin() -> None:
        wait_for_stdin(network.silence_limit_s)
        server.should_exit = True

    async def announce() -> None:
        while not server.started:
            await asyncio.sleep(STARTED_CHECK_S)
        print(ready, flush=True)

    if network.stop_with_stdin:
        threading.Thread(target=stop_with_stdin, daemon=True).start()
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda _: setattr(server, "should_exit", True))
    tasks.append(asyncio.create_task(announce()))
    try:
        await server.serve(sockets=[*listeners])
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def wait_for_stdin(silence_limit_s: int) -> None:
    """Return when stdin closes or falls silent (0: no limit of silence): the parent has then gone, however it ended."""
    while select.select([sys.stdin], [], [], silence_limit_s or None)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            break

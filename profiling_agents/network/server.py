"""The frame of every service around its routes: uvicorn behind the guard, patience with connections, a clean end."""

import asyncio
import os
import resource
import select
import socket
import ssl
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from profiling_agents.messages import AgentError
from profiling_agents.network.endpoint import Endpoint, is_loopback
from profiling_agents.network.guard import Guard, GuardRules, TokenCheck

MAX_HEADER_BYTES = 32 << 10
HEAD_LIMIT_S = 5.0
"""A connection that brings no whole head of a request for so long is closed: it would take the place of others."""

STARTED_CHECK_S = 0.01


class PatientProtocol(H11Protocol):
    """HTTP/1.1 whose patience with silent, or very slow, connections is limited. Before a request nobody has shown a token."""

    _idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        super().connection_lost(exc)
        if self._idle is not None:
            self._idle.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request, whatever is still coming of this one."""
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(HEAD_LIMIT_S, self._close_unless_at_work)

    def _close_unless_at_work(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def http_server(network: Endpoint, app: ASGIApp, token: str | TokenCheck, rules: GuardRules) -> uvicorn.Server:
    """The server of `app` behind the guard. AgentError for bad certificates."""
    any_address = network.host in ("", "0.0.0.0", "::")
    own = ("127.0.0.1", "localhost", "::1") if any_address or is_loopback(network.host) else ()
    hosts = frozenset(name.lower() for name in (*own, network.host, *network.allowed_hosts) if name)
    config = uvicorn.Config(
        Guard(app, token=token, hosts=hosts, any_address=any_address, rules=rules),
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=rules.connections,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=rules.shutdown_s,
        ssl_certfile=network.tls_cert,
        ssl_keyfile=network.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"--tls-cert '{network.tls_cert}': cannot be used with its key ({error})") from error
    return uvicorn.Server(config)


def allow_open_files(count: int) -> None:
    """As many as the system lets this process have, up to `count`: each connection is one, and 1,024 is a usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


async def serve_with(
    server: uvicorn.Server, listener: socket.socket, network: Endpoint, ready: str, *works: Coroutine[Any, Any, None]
) -> None:
    """Serve until stopped, with `works` beside it; the end or fault of one of them ends all.

    Prints `ready` when it serves, and not before signals stop it, even where they were ignored, as in a shell's background.
    At the end works are cancelled one after the other, the last one first: it may need those before it until it has ended.
    """
    if network.stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, args=(server, network.silence_limit_s), daemon=True).start()
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(lambda _: setattr(server, "should_exit", True))
    tasks.append(asyncio.create_task(_announce(server, ready)))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _announce(server: uvicorn.Server, ready: str) -> None:
    while not server.started:
        await asyncio.sleep(STARTED_CHECK_S)
    print(ready, flush=True)


def _stop_with_stdin(server: uvicorn.Server, silence_limit_s: int) -> None:
    """Stop when stdin closes or falls silent."""
    wait_for_stdin(silence_limit_s)
    server.should_exit = True


def wait_for_stdin(silence_limit_s: int) -> None:
    """Return when stdin closes or falls silent (0: however long): the parent is gone, however it went."""
    while select.select([sys.stdin], [], [], silence_limit_s or None)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            break

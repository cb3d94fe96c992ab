"""The frame of every service around its routes: rules of binding, TLS, the guard, a clean end."""

import asyncio
import ipaddress
import os
import select
import socket
import ssl
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from profiling_agents.messages import AgentError
from profiling_agents.serving.guard import Guard

MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 32 << 10
HEAD_LIMIT_S = 5.0
"""A connection that brings no whole head of a request for so long is closed: it would take the place of others."""

STARTED_CHECK_S = 0.01
SHUTDOWN_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a service, and its protection.

    `stop_with_stdin`: the service ends when standard input closes, or is silent for `silence_limit_s` (0: no limit).
    """

    host: str
    port: int
    token: str | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure_bind: bool
    allowed_hosts: tuple[str, ...]
    stop_with_stdin: bool
    silence_limit_s: int


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


def check_bind(network: Endpoint) -> None:
    """Refuse to leave this machine without a token of the user's and TLS, unless told to."""
    if (network.tls_cert is None) != (network.tls_key is None):
        raise AgentError("--tls-cert and --tls-key: one without the other; give both")
    if is_loopback(network.host) or network.insecure_bind:
        return
    if network.tls_cert is None or network.token is None:
        raise AgentError(
            f"--host {network.host}: not a loopback address; it takes --tls-cert, --tls-key and a token "
            "(--token-file), or --insecure-bind (see --help for what that means)"
        )


def check_relay(url: str, network: Endpoint) -> None:
    """Refuse to hand the token to a relay without TLS, unless it is on this machine or the user says so."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query:
        raise AgentError(f"--pull: got '{url}'; allowed: https://HOST:PORT, or http://127.0.0.1:PORT")
    if network.token is None:
        raise AgentError("--pull: the relay asks for a token; give the relay's with --token-file")
    if not is_loopback(network.host) or network.tls_cert is not None:
        raise AgentError("--pull: an agent that pulls listens to nobody; leave --host, --tls-cert and --tls-key out")
    if parts.scheme == "http" and not is_loopback(host) and not network.insecure_bind:
        raise AgentError(f"--pull {url}: not encrypted; use https, or --insecure-bind (see --help for what that means)")


def is_loopback(host: str) -> bool:
    """Whether this names an address that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound, not yet listening socket; AgentError for an occupied port or an address that is not here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off Nagle's delay (40 ms a request) only when it is.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise AgentError(
                f"--host {host} --port {port}: {error.strerror or error}; choose another with --port (0: any free one)"
            ) from error
        yield listener


def address(network: Endpoint, listener: socket.socket) -> str:
    """URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if network.tls_cert else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def http_server(network: Endpoint, app: ASGIApp, token: str, body_bytes: Mapping[str, int]) -> uvicorn.Server:
    """The server of `app` behind the guard; `body_bytes`: caps of single paths. AgentError for bad certificates."""
    any_address = network.host in ("", "0.0.0.0", "::")
    own = ("127.0.0.1", "localhost", "::1") if any_address or is_loopback(network.host) else ()
    hosts = frozenset(name.lower() for name in (*own, network.host, *network.allowed_hosts) if name)
    config = uvicorn.Config(
        Guard(app, token=token, hosts=hosts, any_address=any_address, body_bytes=body_bytes),
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=network.tls_cert,
        ssl_keyfile=network.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"--tls-cert '{network.tls_cert}': cannot be used with its key ({error})") from error
    return uvicorn.Server(config)


async def serve_with(
    server: uvicorn.Server, listener: socket.socket, network: Endpoint, ready: str, *works: Coroutine[Any, Any, None]
) -> None:
    """Serve until stopped, with `works` beside it; the end or fault of one of them ends all.

    Prints `ready` when it serves, and not before signals stop it, even where they were ignored, as in a shell's background.
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
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _announce(server: uvicorn.Server, ready: str) -> None:
    while not server.started:
        await asyncio.sleep(STARTED_CHECK_S)
    print(ready, flush=True)


def new_token(folder: Path) -> str:
    """A random token, written to a 0600 file whose name is printed."""
    token = os.urandom(32).hex()
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(token + "\n")
    print(f"agent token: {path}", flush=True)
    return token


def _stop_with_stdin(server: uvicorn.Server, silence_limit_s: int) -> None:
    """Stop when stdin closes or falls silent: the parent is gone, however it went."""
    while select.select([sys.stdin], [], [], silence_limit_s or None)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            break
    server.should_exit = True

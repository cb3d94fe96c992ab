"""The address of a service: its binding, its protection, and its refusal to leave the machine unprotected."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.messages import AgentError


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


def check_bind(network: Endpoint, *, own_tokens: bool = False) -> None:
    """Refuse to leave this machine without the user's token and TLS, unless `insecure_bind` is set.

    own_tokens: each client has its own token.
    """
    if (network.tls_cert is None) != (network.tls_key is None):
        raise AgentError("--tls-cert and --tls-key: one without the other; give both")
    if is_loopback(network.host) or network.insecure_bind:
        return
    if network.tls_cert is None or (network.token is None and not own_tokens):
        raise AgentError(
            f"--host {network.host}: not a loopback address; it takes --tls-cert, --tls-key and a token "
            "(--token-file), or --insecure-bind (see --help for what that means)"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound, not yet listening socket; AgentError for an occupied port or a foreign address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off Nagle's delay (40 ms a request) only then.
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
    return f"{scheme}://{host_and_port(host, port)}"


def host_and_port(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""The address of a service: its binding, its token, its command-line arguments, and its refusal to be left unprotected.

The token is read from the user's file or variable, or generated. The arguments are the same for every service.
"""

import argparse
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from profiling_agents.messages import AgentError

MIN_TOKEN_LENGTH = 16


def read_token(path: Path | None, variable: str, option: str = "--token-file") -> str | None:
    """The token from the file of an option, else from an environment variable, or None.

    AgentError if it is unsafe to use.
    """
    if path is None:
        token, where = os.environ.get(variable), variable
    else:
        where = f"{option} '{path}'"
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise AgentError(f"{where}: others can read it; make it private with chmod 600")
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AgentError(f"{where}: cannot be read ({error})") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise AgentError(f"{where}: not a token; allowed: at least {MIN_TOKEN_LENGTH} printable characters, no spaces")
    return token


def new_token(folder: Path, whose: str) -> str:
    """A random token in a new 0600 file; the file's name is printed, together with the service's."""
    token = os.urandom(32).hex()
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(token + "\n")
    print(f"{whose} token: {path}", flush=True)
    return token


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


HOST = "127.0.0.1"
BAD_INPUT = 2
"""Exit code for bad input."""


class ServiceParser(argparse.ArgumentParser):
    """Accepts only whole option names, and reports errors in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Report one line instead of the usage block."""
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def positive(text: str) -> int:
    """A whole number from 1 on; ValueError otherwise."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "positive whole number"


def port_number(text: str) -> int:
    """A port, 0 for any free one; ValueError otherwise."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError
    return value


port_number.__name__ = "port (0 to 65535)"


def peer_address(text: str) -> str:
    """`HOST:PORT` of another device, normalised so that addresses can be compared; ValueError otherwise."""
    parts = urlsplit(f"tcp://{text}")
    if not parts.hostname or parts.port is None or parts.username is not None or parts.path or parts.query:
        raise ValueError
    return host_and_port(parts.hostname, parts.port)


peer_address.__name__ = "HOST:PORT"


def add_network(parser: argparse.ArgumentParser, port: int, risk: str) -> argparse._ArgumentGroup:
    """Add the arguments that `endpoint` reads. risk: the danger without TLS, as the help of --insecure-bind ends."""
    network = parser.add_argument_group("network")
    network.add_argument("--host", default=HOST, help=f"address to bind (default {HOST})")
    network.add_argument("--port", type=port_number, default=port, help=f"port; 0 takes any free one (default {port})")
    network.add_argument("--token-file", type=Path, metavar="F", help="file with the token, readable by you only")
    network.add_argument("--tls-cert", type=Path, metavar="F", help="certificate chain (PEM) for https")
    network.add_argument("--tls-key", type=Path, metavar="F", help="its private key (PEM)")
    network.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which clients reach this service; may be repeated",
    )
    network.add_argument("--insecure-bind", action="store_true", help=f"leave this machine without TLS: {risk}")
    network.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input closes")
    network.add_argument(
        "--silence-limit-s",
        type=positive,
        default=0,
        metavar="S",
        help="with --stop-with-stdin: stop, too, when it brings nothing for so long",
    )
    return network


def endpoint(arguments: argparse.Namespace, token_variable: str) -> Endpoint:
    """The endpoint from the arguments; the token comes from its file, else from an environment variable. AgentError."""
    return Endpoint(
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file, token_variable),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure_bind=arguments.insecure_bind,
        allowed_hosts=tuple(arguments.allowed_host),
        stop_with_stdin=arguments.stop_with_stdin,
        silence_limit_s=arguments.silence_limit_s,
    )

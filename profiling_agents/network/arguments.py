"""The command-line arguments of every service for its address and its protection."""

import argparse
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from profiling_agents.network.endpoint import Endpoint, host_and_port
from profiling_agents.network.tokens import read_token

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
    network.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
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
    network.add_argument(
        "--insecure-bind",
        action="store_true",
        help=f"leave this machine without TLS: {risk}",
    )
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

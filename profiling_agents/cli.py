"""`autotailor agent`: the command line of the device-side service. Exit code 0, or 2 with one clear line."""

import argparse
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profiling_agents.arguments import agent_parser, relay_parser
from profiling_agents.execution.limits import ModelLimits
from profiling_agents.messages import AgentError
from profiling_agents.startup import TOKEN_VARIABLE

if TYPE_CHECKING:
    from profiling_agents.serving.network import Endpoint

MIN_TOKEN_LENGTH = 16


def read_token(path: Path | None) -> str | None:
    """The token from a file or the environment, or None; AgentError when it is unsafe to use."""
    if path is None:
        token, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        where = f"--token-file '{path}'"
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


def main(argv: Sequence[str] | None = None, prog: str = "autotailor agent") -> int:
    """Serve until stopped. Returns 0, or 2 after one line on stderr."""
    return _run(agent_parser(prog), argv, _serve_agent)


def relay(argv: Sequence[str] | None = None, prog: str = "autotailor relay") -> int:
    """Serve as the relay of a pulling agent until stopped. Returns 0, or 2 after one line on stderr."""
    return _run(relay_parser(prog), argv, _serve_relay)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, serve: Callable[..., None]) -> int:
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        serve(arguments)
    except AgentError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


def _serve_relay(arguments: argparse.Namespace) -> None:
    from profiling_agents.serving.relay import serve_relay

    serve_relay(_network(arguments), arguments.max_model_mib)


def _network(arguments: argparse.Namespace) -> "Endpoint":
    from profiling_agents.serving.network import Endpoint

    return Endpoint(
        host=arguments.host,
        port=arguments.port,
        token=read_token(arguments.token_file),
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure_bind=arguments.insecure_bind,
        allowed_hosts=tuple(arguments.allowed_host),
        stop_with_stdin=arguments.stop_with_stdin,
        silence_limit_s=arguments.silence_limit_s,
    )


def _serve_agent(arguments: argparse.Namespace) -> None:
    from profiling_agents.serving.options import ServerOptions
    from profiling_agents.serving.server import serve

    serve(
        ServerOptions(
            backend=arguments.backend,
            threads=arguments.threads,
            precision=arguments.precision,
            provider=arguments.provider,
            cores=arguments.cores,
            network=_network(arguments),
            pull=arguments.pull,
            ca_file=arguments.ca_file,
            limits=ModelLimits(
                memory_mib=arguments.memory_limit_mib,
                cpu_s=arguments.cpu_limit_s,
                wall_s=arguments.wall_limit_s,
            ),
            max_model_mib=arguments.max_model_mib,
            pin_mhz=arguments.pin_mhz,
            sensors_root=arguments.sensors_root,
            walls=not arguments.without_walls,
        )
    )

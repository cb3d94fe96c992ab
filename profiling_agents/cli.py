"""`autotailor agent`: the command line of the device-side service. Exit code 0, or 2 with one clear line."""

import argparse
import sys
from collections.abc import Callable, Sequence

from profiling_agents.arguments import agent_parser, relay_parser
from profiling_agents.execution.limits import ModelLimits
from profiling_agents.lines import full_disk
from profiling_agents.messages import AgentError
from profiling_agents.network.arguments import endpoint
from profiling_agents.startup import TOKEN_VARIABLE


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
    except Exception as error:
        if (line := full_disk(error)) is None:
            raise
        print(f"{parser.prog}: {line}", file=sys.stderr)
        return 2
    return 0


def _serve_relay(arguments: argparse.Namespace) -> None:
    from profiling_agents.serving.relay import serve_relay

    serve_relay(endpoint(arguments, TOKEN_VARIABLE), arguments.max_model_mib)


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
            network=endpoint(arguments, TOKEN_VARIABLE),
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
            sandbox=not arguments.without_sandbox,
            segments=arguments.serve_segments,
            max_subnets=arguments.max_subnets,
            allowed_peers=tuple(arguments.allow_peer),
        )
    )

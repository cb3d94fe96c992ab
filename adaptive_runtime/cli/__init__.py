"""`autotailor-runtime`: the command line on a device. Exit code 0, or 2 with one clear line."""

import argparse
import sys
from collections.abc import Sequence

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.cli import checking, fleet, searching, serving, splitting
from profiling_agents.lines import full_disk
from profiling_agents.messages import AgentError
from profiling_agents.network.endpoint import BAD_INPUT, ServiceParser

PROGRAM = "autotailor-runtime"
COMMANDS = {"check": checking, "fleet": fleet, "search": searching, "serve": serving, "split": splitting}


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = ServiceParser(prog=PROGRAM, description="Run and serve SubNets on this device.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=ServiceParser)
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP, description=command.HELP))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, or 2 after one line on stderr."""
    try:
        arguments = command_line().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        COMMANDS[arguments.command].run(arguments)
    except (AdaptiveError, AgentError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return 0
    except Exception as error:
        if (line := full_disk(error)) is None:
            raise
        print(f"{PROGRAM}: {line}", file=sys.stderr)
        return BAD_INPUT
    return 0

"""A relay and the agents that pull from it, as processes."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.agents import agent_processes as processes

RELAY = "import sys; from profiling_agents.cli import relay; sys.exit(relay(sys.argv[1:]))"


def relay_command(*options: str) -> list[str]:
    return [sys.executable, "-c", RELAY, *options]


@contextmanager
def started_relay(*options: str) -> Iterator[str]:
    """The address of a running relay."""
    process = subprocess.Popen(
        relay_command("--port", "0", *options), stdout=subprocess.PIPE, text=True, env=processes.environment()
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("relay ready: "), line
        yield line.removeprefix("relay ready: ").strip()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextmanager
def started_puller(url: str, options: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """An agent that pulls from the relay."""
    with processes.started(["--backend", "ncnn", "--pull", url, *options]) as (process, printed):
        assert printed["agent ready"] == url
        yield process

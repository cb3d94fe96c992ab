"""Network namespaces of this machine, joined by links whose bandwidth `tc tbf` limits. Takes root, `ip` and `tc`.

`benchmarks.linked_devices` has devices in them.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.control_group import group, short_period_us
from flows.machine import in_turn
from tests.support.agents.agent_processes import environment

PREFIX = "atl"
COORDINATOR_SPACE = f"{PREFIX}-coordinator"
NAMED_SPACES = Path("/run/netns")
BURST_S = 0.001
LEAST_BURST_BYTES = 3200
"""Two packets: with less, tbf passes none."""
QUEUE_MS = 400
STOP_S = 60.0
LinkEnds = tuple[tuple[str, str], tuple[str, str]]
"""Namespace and interface of both ends of a link."""


class ShapedLink(NamedTuple):
    """mbps, delay_ms: of each direction."""

    mbps: float
    delay_ms: float


def command(*words: str) -> str:
    """Run a command; its output, or its own words where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def inside(space: str, *words: str) -> tuple[str, ...]:
    """A command in a namespace."""
    return ("ip", "netns", "exec", space, *words)


def limit(ends: LinkEnds, mbps: float) -> None:
    """Both directions of a link, from now on."""
    burst = max(LEAST_BURST_BYTES, int(mbps * 125e3 * BURST_S))
    rule = ("root", "tbf", "rate", f"{mbps:g}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")
    for space, end in ends:
        command(*inside(space, "tc", "qdisc", "replace", "dev", end, *rule))


def unlimit(ends: LinkEnds) -> None:
    """Both directions of a link that is limited, from now on."""
    for space, end in ends:
        command(*inside(space, "tc", "qdisc", "delete", "dev", end, "root"))


@contextmanager
def added_spaces(spaces: Sequence[str]) -> Iterator[None]:
    """Network namespaces, each with a loopback of its own; removed at the end, after SIGTERM, too.

    Waits for other benchmarks that have some. One that was left by a benchmark that had no end is made anew.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    made: list[str] = []
    with in_turn(PREFIX):
        try:
            for space in spaces:
                if (NAMED_SPACES / space).exists():
                    _wait_for_nobody(space)
                    command("ip", "netns", "delete", space)
                command("ip", "netns", "add", space)
                made.append(space)
                command(*inside(space, "ip", "link", "set", "lo", "up"))
            yield
        finally:
            for space in made:
                subprocess.run(("ip", "netns", "delete", space), check=False)


def _wait_for_nobody(space: str) -> None:
    """SystemExit where processes of a killed benchmark stay in a namespace."""
    until = time.monotonic() + STOP_S
    while others := command("ip", "netns", "pids", space).split():
        if time.monotonic() > until:
            raise SystemExit(f"namespace {space}: processes {', '.join(others)} are in it; end them first")
        time.sleep(1.0)


def join(ends: LinkEnds, network: str) -> None:
    """A link between two namespaces, whose ends have the addresses 1 and 2 of a network."""
    (space, end), (other, other_end) = ends
    command("ip", "link", "add", end, "netns", space, "type", "veth", "peer", other_end, "netns", other)
    for last, (space, end) in enumerate(ends, 1):
        command(*inside(space, "ip", "address", "add", f"{network}.{last}/24", "dev", end))
        command(*inside(space, "ip", "link", "set", end, "up"))


def told_by_coordinator(cpus: float | None, *words: str) -> str:
    """What a Python program prints in the coordinator's namespace, with `cpus` (None: all) from its line `ready` on."""
    program = inside(COORDINATOR_SPACE, sys.executable, *words)
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=environment()) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{' '.join(words)}: has not started")
        if cpus is not None:
            stack.enter_context(group(f"{PREFIX}-coordinator", cpus, short_period_us(cpus)))(process.pid)
        told, _ = process.communicate("go\n")
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: ended with {process.returncode}")
    return told

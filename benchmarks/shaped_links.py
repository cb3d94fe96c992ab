"""Home and a device in network namespaces of this machine, joined by a link that is shaped without another machine.

`tc tbf` limits both directions; a relay in front of the device holds what crosses for the delay of one direction, since not
every kernel has netem. Takes root, `ip` and `tc`.
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
from tests.agents.agent_processes import environment

PREFIX = "atl"
HOME_SPACE, DEVICE_SPACE = f"{PREFIX}-home", f"{PREFIX}-device"
HOME_END, DEVICE_END = f"{PREFIX}0h", f"{PREFIX}0d"
NAMED_SPACES = Path("/run/netns")
NETWORK = "10.77.0"
AGENT_PORT, RELAY_PORT = 9100, 9200
BURST_S = 0.001
LEAST_BURST_BYTES = 3200
"""Two packets: with less, tbf passes none."""
QUEUE_MS = 400
STOP_S = 60.0


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


def limit(space: str, end: str, mbps: float) -> None:
    """What leaves one end of a link, from now on."""
    burst = max(LEAST_BURST_BYTES, int(mbps * 125e3 * BURST_S))
    rule = ("root", "tbf", "rate", f"{mbps:g}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")
    command(*inside(space, "tc", "qdisc", "replace", "dev", end, *rule))


@contextmanager
def added_spaces(spaces: Sequence[str]) -> Iterator[None]:
    """Network namespaces, each with a loopback of its own; removed at the end, after SIGTERM, too.

    One that was left by a benchmark that had no end is made anew.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    made: list[str] = []
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


def join(spaces: tuple[str, str], ends: tuple[str, str], network: str) -> None:
    """A link between two namespaces, whose ends have the addresses 1 and 2 of a network."""
    command("ip", "link", "add", ends[0], "netns", spaces[0], "type", "veth", "peer", ends[1], "netns", spaces[1])
    for last, (space, end) in enumerate(zip(spaces, ends, strict=True), 1):
        command(*inside(space, "ip", "address", "add", f"{network}.{last}/24", "dev", end))
        command(*inside(space, "ip", "link", "set", end, "up"))


@contextmanager
def namespaces() -> Iterator[None]:
    """Both namespaces, joined by a link without limits; removed at the end."""
    with added_spaces((HOME_SPACE, DEVICE_SPACE)):
        join((HOME_SPACE, DEVICE_SPACE), (HOME_END, DEVICE_END), NETWORK)
        yield


@contextmanager
def shaped(link: ShapedLink) -> Iterator[str]:
    """The link with its bandwidth and delay, until the block ends; the address that home dials."""
    ends = ((HOME_SPACE, HOME_END), (DEVICE_SPACE, DEVICE_END))
    relay = ("-m", "tests.links.relay", str(RELAY_PORT), f"127.0.0.1:{AGENT_PORT}", "--host", "0.0.0.0")
    for space, end in ends:
        limit(space, end, link.mbps)
    try:
        with _started(*relay, "--delay-ms", f"{link.delay_ms:g}"):
            yield f"tcp://{NETWORK}.2:{RELAY_PORT}"
    finally:
        for space, end in ends:
            command(*inside(space, "tc", "qdisc", "delete", "dev", end, "root"))


@contextmanager
def serving_device(cpus: float | None, backend: str = "onnxruntime") -> Iterator[str]:
    """An agent in the device's namespace that serves segments; its address on the link without limits. cpus: None: all."""
    agent = ("-m", "profiling_agents", "--backend", backend, "--serve-segments", "--insecure-bind")
    with ExitStack() as stack:
        process = stack.enter_context(_started(*agent, "--host", "0.0.0.0", "--port", str(AGENT_PORT)))
        assert process.stdout is not None
        if not process.stdout.readline().startswith("agent ready: "):
            raise SystemExit("the agent has not started")
        if cpus is not None:
            stack.enter_context(group(f"{PREFIX}-device", cpus, short_period_us(cpus)))(process.pid)
        yield f"tcp://{NETWORK}.2:{AGENT_PORT}"


def told_by_home(cpus: float | None, *words: str) -> str:
    """What a Python program prints in home's namespace, where it may use `cpus` (None: all) from its line `ready` on."""
    program = inside(HOME_SPACE, sys.executable, *words)
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=environment()) as process,
        ExitStack() as stack,
    ):
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{' '.join(words)}: has not started")
        if cpus is not None:
            stack.enter_context(group(f"{PREFIX}-home", cpus, short_period_us(cpus)))(process.pid)
        told, _ = process.communicate("go\n")
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: ended with {process.returncode}")
    return told


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program in the device's namespace."""
    program = inside(DEVICE_SPACE, sys.executable, *words)
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_S)

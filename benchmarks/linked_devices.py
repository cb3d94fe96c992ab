"""The coordinator and devices in network namespaces of this machine, each device behind a link of its own that is shaped.

`tc tbf` limits both directions; a relay in front of each device holds what crosses for the delay of one direction, since not
every kernel has netem. Takes root, `ip` and `tc`.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from benchmarks.control_group import group, short_period_us
from benchmarks.shaped_links import (
    COORDINATOR_SPACE,
    PREFIX,
    STOP_S,
    LinkEnds,
    ShapedLink,
    added_spaces,
    inside,
    join,
    limit,
    unlimit,
)
from tests.support.agents.agent_processes import environment

NETWORKS = "10.77"
AGENT_PORT, RELAY_PORT = 9100, 9200


class LinkedDevice(NamedTuple):
    """A device behind the link of a number."""

    name: str
    number: int

    @property
    def space(self) -> str:
        """Its namespace."""
        return f"{PREFIX}-{self.name}"

    @property
    def ends(self) -> LinkEnds:
        """Of its link, the coordinator's first."""
        return (COORDINATOR_SPACE, f"{PREFIX}{self.number}h"), (self.space, f"{PREFIX}{self.number}d")

    @property
    def network(self) -> str:
        """Of its link."""
        return f"{NETWORKS}.{self.number}"

    @property
    def url(self) -> str:
        """What the coordinator dials on the link with its delay."""
        return f"tcp://{self.network}.2:{RELAY_PORT}"

    @property
    def undelayed_url(self) -> str:
        """What the coordinator dials to reach the agent without the relay."""
        return f"tcp://{self.network}.2:{AGENT_PORT}"


def linked(names: Iterable[str]) -> dict[str, LinkedDevice]:
    """Devices by name, in this order."""
    return {name: LinkedDevice(name, number) for number, name in enumerate(names)}


@contextmanager
def namespaces(names: Iterable[str]) -> Iterator[dict[str, LinkedDevice]]:
    """A namespace for the coordinator and one for each device, joined by links without limits; removed at the end."""
    devices = linked(names)
    with added_spaces([COORDINATOR_SPACE, *(device.space for device in devices.values())]):
        for device in devices.values():
            join(device.ends, device.network)
        yield devices


@contextmanager
def served(words: Mapping[str, Sequence[str]], cpus: float | None = None) -> Iterator[None]:
    """An agent that serves segments in each device's namespace, whose further words are told, with `cpus` (None: all)."""
    with ExitStack() as stack:
        for name, device in linked(words).items():
            agent = ("-m", "profiling_agents", "--serve-segments", "--insecure-bind", "--host", "0.0.0.0")
            started = _started(device, *agent, "--port", str(AGENT_PORT), *words[name], told=True)
            process = stack.enter_context(started)
            assert process.stdout is not None
            if not process.stdout.readline().startswith("agent ready: "):
                raise SystemExit(f"the agent of {name} has not started")
            if cpus is not None:
                stack.enter_context(group(device.space, cpus, short_period_us(cpus)))(process.pid)
        yield


@contextmanager
def shaped(links: Mapping[str, ShapedLink]) -> Iterator[dict[str, str]]:
    """Each device's link with its bandwidth and delay, until the block ends; the addresses that the coordinator dials."""
    devices, relay = linked(links), ("-m", "tests.support.links.relay", str(RELAY_PORT), f"127.0.0.1:{AGENT_PORT}")
    with ExitStack() as stack:
        for name, device in devices.items():
            limit(device.ends, links[name].mbps)
            stack.callback(unlimit, device.ends)
            delay = ("--host", "0.0.0.0", "--delay-ms", f"{links[name].delay_ms:g}")
            stack.enter_context(_started(device, *relay, *delay))
        yield {name: device.url for name, device in devices.items()}


@contextmanager
def _started(device: LinkedDevice, *words: str, told: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A Python program in a device's namespace. told: what it prints is read."""
    out = subprocess.PIPE if told else None
    process = subprocess.Popen(inside(device.space, sys.executable, *words), stdout=out, text=True, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_S)

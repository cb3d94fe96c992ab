"""Home and several devices in network namespaces of this machine, each device behind a link that is shaped.

`tc tbf` limits both directions; a relay in front of each device holds what crosses for the delay of one direction. Takes root,
`ip` and `tc`.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from benchmarks.shaped_links import AGENT_PORT, HOME_SPACE, PREFIX, RELAY_PORT, added_spaces, inside, join, limit
from tests.agents.agent_processes import environment

START_S = 60.0


class DeviceLink(NamedTuple):
    """A device's link to home. mbps: of each direction. delay_ms: of each direction, too."""

    device: str
    mbps: float
    delay_ms: float


class LinkedDevice(NamedTuple):
    """A device behind its link: the namespace, both ends of the link, and the address that home dials."""

    space: str
    home_end: str
    device_end: str
    url: str


def shape(device: LinkedDevice, mbps: float) -> None:
    """Both directions of a link, from now on."""
    for space, end in ((HOME_SPACE, device.home_end), (device.space, device.device_end)):
        limit(space, end, mbps)


@contextmanager
def namespaces(links: Sequence[DeviceLink]) -> Iterator[dict[str, LinkedDevice]]:
    """A namespace for home and one for each device, joined and shaped; removed at the end."""
    spaces = [HOME_SPACE, *(f"{PREFIX}-{link.device}" for link in links)]
    with added_spaces(spaces):
        devices = {}
        for number, (link, space) in enumerate(zip(links, spaces[1:], strict=True)):
            ends, network = (f"{PREFIX}{number}h", f"{PREFIX}{number}d"), f"10.77.{number}"
            join((HOME_SPACE, space), ends, network)
            devices[link.device] = LinkedDevice(space, *ends, f"tcp://{network}.2:{RELAY_PORT}")
            shape(devices[link.device], link.mbps)
        yield devices


@contextmanager
def served(
    links: Sequence[DeviceLink], devices: dict[str, LinkedDevice], words: dict[str, tuple[str, ...]] | None = None
) -> Iterator[None]:
    """An agent that serves segments and a relay in each device's namespace. words: further ones of agents, by device."""
    with ExitStack() as stack:
        for link in links:
            space = devices[link.device].space
            agent = ("-m", "profiling_agents", "--backend", "onnxruntime", "--serve-segments")
            own = ("--port", str(AGENT_PORT), *(words or {}).get(link.device, ()))
            started = stack.enter_context(_started(space, *agent, *own, told=True))
            assert started.stdout is not None
            if not started.stdout.readline().startswith("agent ready: "):
                raise SystemExit(f"the agent of {link.device} has not started")
            relay = ("-m", "tests.links.relay", str(RELAY_PORT), f"127.0.0.1:{AGENT_PORT}")
            stack.enter_context(_started(space, *relay, "--host", "0.0.0.0", "--delay-ms", f"{link.delay_ms:g}"))
        yield


@contextmanager
def _started(space: str, *words: str, told: bool = False) -> Iterator[subprocess.Popen[str]]:
    out = subprocess.PIPE if told else None
    process = subprocess.Popen(inside(space, sys.executable, *words), stdout=out, text=True, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)

"""Three devices in network namespaces of this machine, with shaped links; what home measures of them, beside what they are.

    python -m benchmarks.links [--mbps 1 5 10 50 100] [--delay-ms 2 20] [--requests 50] [--coding fp32] [--json FILE]

It takes root, `ip` and `tc`. Home and two devices have a namespace each. Each device has a link of its own to home, whose two
directions `tc tbf` shapes; a relay in front of the device holds what crosses for the delay of one direction, since not every
kernel has netem. All processes share the machine's cores.

For each bandwidth and delay: bandwidths and round trip as home measures them, and the latency of requests whose last three of
four segments run on the first device, beside what the link and the times of the segments predict: p50 of all requests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_runtime.links import DeviceAddress
from adaptive_runtime.split import HOME, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from profiling_agents.messages import CODED_BYTES
from tests.agents.agent_processes import TOKEN, environment
from tests.links.devices import inputs, write_chain

PREFIX = "atl"
HOME_SPACE = f"{PREFIX}-home"
AGENT_PORT, RELAY_PORT = 9100, 9200
BURST_S = 0.001
LEAST_BURST_BYTES = 3200
"""Two packets: with less, tbf passes none."""
QUEUE_MS = 400
START_S = 60.0
DEADLINE_MS = 60_000.0


class ShapedLink(NamedTuple):
    """A device's link to home. mbps: of each direction. delay_ms: of each direction, too."""

    device: str
    mbps: float
    delay_ms: float


class ShapedDevice(NamedTuple):
    """A device behind its link: the namespace, both ends of the link, and the address that home dials."""

    space: str
    home_end: str
    device_end: str
    url: str


def command(*words: str) -> None:
    """Run a command; its own words where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def inside(space: str, *words: str) -> tuple[str, ...]:
    """A command in a namespace."""
    return ("ip", "netns", "exec", space, *words)


def shape(device: ShapedDevice, mbps: float) -> None:
    """Both directions of a link, from now on."""
    for space, end in ((HOME_SPACE, device.home_end), (device.space, device.device_end)):
        shape_end(space, end, mbps)


def shape_end(space: str, end: str, mbps: float) -> None:
    """What leaves one end of a link, from now on."""
    burst = max(LEAST_BURST_BYTES, int(mbps * 125e3 * BURST_S))
    rule = ("root", "tbf", "rate", f"{mbps:g}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms")
    command(*inside(space, "tc", "qdisc", "replace", "dev", end, *rule))


@contextmanager
def namespaces(links: Sequence[ShapedLink]) -> Iterator[dict[str, ShapedDevice]]:
    """A namespace for home and one for each device, joined and shaped; removed at the end."""
    spaces = [HOME_SPACE, *(f"{PREFIX}-{link.device}" for link in links)]
    made: list[str] = []
    try:
        for space in spaces:
            command("ip", "netns", "add", space)
            made.append(space)
            command(*inside(space, "ip", "link", "set", "lo", "up"))
        devices = {}
        for number, (link, space) in enumerate(zip(links, spaces[1:], strict=True)):
            ends = (f"{PREFIX}{number}h", f"{PREFIX}{number}d")
            command("ip", "link", "add", ends[0], "netns", HOME_SPACE, "type", "veth", "peer", ends[1], "netns", space)
            for one, end, last in ((HOME_SPACE, ends[0], 1), (space, ends[1], 2)):
                command(*inside(one, "ip", "address", "add", f"10.77.{number}.{last}/24", "dev", end))
                command(*inside(one, "ip", "link", "set", end, "up"))
            devices[link.device] = ShapedDevice(space, *ends, f"tcp://10.77.{number}.2:{RELAY_PORT}")
            shape(devices[link.device], link.mbps)
        yield devices
    finally:
        for space in made:
            subprocess.run(("ip", "netns", "delete", space), check=False)


@contextmanager
def served(
    links: Sequence[ShapedLink], devices: dict[str, ShapedDevice], words: dict[str, tuple[str, ...]] | None = None
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


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """In home's namespace: requests over the first device, and what is known of its link."""
    split = SplitSubNet.open(options.chain)
    addresses = {name: DeviceAddress(url=url, token=TOKEN) for name, url in options.device}
    first = next(iter(addresses))
    plan = PlacedSegments(devices=(HOME, *[first] * (len(split.subnet.segments) - 1)))
    chosen = SplitOptions(coding=options.coding)
    with SplitNetwork(split, addresses, [plan], chosen) as network:
        if not network.wait_for(timeout_s=START_S):
            raise SystemExit(f"not connected: {network.states}")
        latencies_ms, rest_ms = [], []
        for x in inputs(split, options.requests):
            found = network.infer(x, DEADLINE_MS)
            peer = found.legs[-1].peer
            if found.at_home is None and peer is not None:
                latencies_ms.append(found.latency_ms)
                rest_ms.append(found.legs[0].took_ms + peer.waited_ms + peer.computed_ms)
        link = network.links[first]
        (sent,) = split.subnet.leaving(0, 0)
        up_bytes = int(np.prod(split.subnet.shapes[sent])) * CODED_BYTES[chosen.coding]
        down_bytes = int(np.prod(split.subnet.shapes[split.subnet.answer])) * CODED_BYTES[chosen.coding]
        return {
            "link": link.model_dump(),
            "up_bytes": up_bytes,
            "latency_ms": float(np.median(latencies_ms)),
            "predicted_ms": float(np.median(rest_ms)) + link.transfer_ms(up_bytes, down_bytes),
            "requests": len(latencies_ms),
        }


def run(mbps: float, delay_ms: float, options: argparse.Namespace, chain: Path) -> dict[str, Any]:
    """One bandwidth and delay: namespaces, devices, and home in a process of its own."""
    links = [ShapedLink(name, mbps, delay_ms) for name in ("a", "b")]
    with namespaces(links) as devices, served(links, devices):
        time.sleep(0.5)
        words = ["-m", "benchmarks.links", "--chain", str(chain), "--requests", str(options.requests)]
        words += ["--coding", options.coding]
        for name, device in devices.items():
            words += ["--device", name, device.url]
        home = inside(HOME_SPACE, sys.executable, *words)
        done = subprocess.run(home, capture_output=True, text=True, env=environment(), check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return {"mbps": mbps, "delay_ms": delay_ms, **json.loads(done.stdout.splitlines()[-1])}


def shown(rows: list[dict[str, Any]]) -> None:
    """The table."""
    table = Table(title="links as home measures them")
    for name in ("Mbit/s", "delay", "up", "down", "round trip", "bytes up", "p50", "predicted", "off"):
        table.add_column(name, justify="right")
    for row in rows:
        link, off = row["link"], row["predicted_ms"] / row["latency_ms"] - 1
        known = (f"{link[name]:.1f}" for name in ("up_mbps", "down_mbps", "round_trip_ms"))
        times = (f"{row['latency_ms']:.1f} ms", f"{row['predicted_ms']:.1f} ms", f"{100 * off:+.0f} %")
        table.add_row(f"{row['mbps']:g}", f"{row['delay_ms']:g} ms", *known, str(row["up_bytes"]), *times)
    Console(width=110).print(table)


def main() -> None:
    """All bandwidths and delays; or home's part, in its namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbps", type=float, nargs="+", default=[1.0, 5.0, 10.0, 50.0, 100.0])
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[2.0, 20.0], help="of one direction")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--coding", choices=sorted(CODED_BYTES), default="fp32")
    parser.add_argument("--channels", type=int, default=64, help="of the network that is split")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--device", nargs=2, action="append", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        print(json.dumps(measured(options)))
        return
    if os.geteuid() != 0:
        raise SystemExit("benchmarks.links: namespaces take root; run it as root")
    with tempfile.TemporaryDirectory() as folder:
        chain = write_chain(Path(folder) / "chain", channels=options.channels)
        rows = [run(mbps, delay_ms, options, chain) for mbps in options.mbps for delay_ms in options.delay_ms]
    shown(rows)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

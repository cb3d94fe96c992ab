"""Links in network namespaces that change while they are idle, and a value that goes straight between two devices.

    python -m benchmarks.links_changes [--mbps 1 10 50] [--factor 8] [--idle-s 120] [--between-mbps 100] [--json FILE]

It takes what `benchmarks.links` takes: root, `ip` and `tc`.

Idle: the coordinator is connected to a device and sends nothing but probes. After `idle-s` the link becomes `factor` times
as fast.
Measured: after which time the coordinator takes it for at least half as fast as it is; -1 if the coordinator does not
within ten minutes.

Straight: the last of four segments runs on a second device, the two before it on the first one. Both devices have links of
`mbps` to the coordinator and one of `between-mbps` to each other. Measured: p50 of the latency of requests, through the
coordinator and straight.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from benchmarks.linked_devices import RELAY_PORT, LinkedDevice, namespaces, served, shaped
from benchmarks.shaped_links import COORDINATOR_SPACE, PREFIX, ShapedLink, inside, join, limit
from tests.support.agents.agent_processes import TOKEN, environment
from tests.support.links.devices import inputs, write_chain

BETWEEN = "10.77.99"
"""The network of the link between the two devices."""
BACKEND = ("--backend", "onnxruntime")
START_S = 60.0
DEADLINE_MS = 60_000.0
LONGEST_S = 600.0
POLL_S = 0.1


@contextmanager
def coordinator(chain: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The coordinator's part of this program, in its namespace; what it prints is read by the caller."""
    own = (sys.executable, "-m", "benchmarks.links_changes", "--chain", str(chain), *words)
    process = subprocess.Popen(inside(COORDINATOR_SPACE, *own), stdout=subprocess.PIPE, text=True, env=environment())
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that the coordinator prints. SystemExit: it has ended."""
    assert process.stdout is not None
    if line := process.stdout.readline().strip():
        return line
    raise SystemExit("the coordinator has ended; its error is above")


def idle(mbps: float, options: argparse.Namespace, chain: Path) -> dict[str, Any]:
    """How long a faster link is not noticed."""
    links = {"a": ShapedLink(mbps, options.delay_ms)}
    with namespaces(links) as devices, served({"a": BACKEND}), shaped(links):
        time.sleep(0.5)
        half = options.factor * mbps / 2
        with coordinator(chain, "--device", "a", devices["a"].url, "--until-mbps", f"{half:g}") as process:
            assert line_of(process) == "idle"
            time.sleep(options.idle_s)
            limit(devices["a"].ends, options.factor * mbps)
            start_s = time.monotonic()
            noticed = line_of(process) == "noticed"
            return {"mbps": mbps, "noticed_s": time.monotonic() - start_s if noticed else -1.0}


def straight(mbps: float, options: argparse.Namespace, chain: Path) -> dict[str, Any]:
    """Latencies through the coordinator and straight."""
    links = dict.fromkeys(("a", "b"), ShapedLink(mbps, options.delay_ms))
    where = f"{BETWEEN}.2:{RELAY_PORT}"
    with namespaces(links) as devices:
        join_devices(devices, options.between_mbps)
        with served({"a": (*BACKEND, "--allow-peer", where), "b": BACKEND}), shaped(links):
            time.sleep(0.5)
            words = [word for name in devices for word in ("--device", name, devices[name].url)]
            words += ["--peer-url", f"tcp://{where}", "--requests", str(options.requests)]
            with coordinator(chain, *words) as process:
                return {"mbps": mbps, **json.loads(line_of(process))}


def join_devices(devices: dict[str, LinkedDevice], mbps: float) -> None:
    """A link between both devices. It goes with their namespaces."""
    ends = (devices["a"].space, f"{PREFIX}ab0"), (devices["b"].space, f"{PREFIX}ab1")
    join(ends, BETWEEN)
    limit(ends, mbps)


def on_coordinator(options: argparse.Namespace) -> None:
    """In the coordinator's namespace."""
    split = SplitSubNet.open(options.chain)
    peer_url = {"b": options.peer_url}.get
    addresses = {name: DeviceAddress(url=url, token=TOKEN, peer_url=peer_url(name)) for name, url in options.device}
    if options.until_mbps is not None:
        plan = PlacedSegments(devices=(COORDINATOR,) * len(split.subnet.segments))
        with SplitNetwork(split, addresses, [plan]) as network:
            if not network.wait_for(timeout_s=START_S):
                raise SystemExit(f"not connected: {network.states}")
            print("idle", flush=True)
            print("noticed" if noticed(network, options.until_mbps) else "not noticed", flush=True)
        return
    plan = PlacedSegments(devices=(COORDINATOR, *["a"] * (len(split.subnet.segments) - 2), "b"))
    ways = {"through_coordinator_ms": False, "straight_ms": True}
    found = {name: p50_ms(split, addresses, plan, options, direct=direct) for name, direct in ways.items()}
    print(json.dumps(found), flush=True)


def noticed(network: SplitNetwork, until_mbps: float) -> bool:
    """Whether a link is taken for so fast within ten minutes."""
    end_s = time.monotonic() + LONGEST_S
    while time.monotonic() < end_s:
        link = network.links.get("a")
        if link is not None and min(link.up_mbps or 0.0, link.down_mbps or 0.0) >= until_mbps:
            return True
        time.sleep(POLL_S)
    return False


def p50_ms(
    split: SplitSubNet,
    addresses: dict[str, DeviceAddress],
    plan: PlacedSegments,
    options: argparse.Namespace,
    *,
    direct: bool,
) -> float:
    """Of requests by a plan over two devices. SystemExit: one of them went another way."""
    with SplitNetwork(split, addresses, [plan], SplitOptions(direct=direct)) as network:
        if not network.wait_for(timeout_s=START_S):
            raise SystemExit(f"not connected: {network.states}")
        found = [network.infer(x, DEADLINE_MS) for x in inputs(split, options.requests + 1)][1:]
        if any(one.on_coordinator is not None for one in found) or bool(network.direct_links) != direct:
            raise SystemExit(f"requests went another way: {network.events}")
        return float(np.median([one.latency_ms for one in found]))


def shown(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of rows with the same columns."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.1f}" for value in row.values()))
    Console(width=100).print(table)


def main() -> None:
    """Both measurements for all bandwidths; or the coordinator's part, in its namespace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbps", type=float, nargs="+", default=[1.0, 10.0, 50.0])
    parser.add_argument("--factor", type=float, default=8.0)
    parser.add_argument("--idle-s", type=float, default=120.0, help="before the link changes")
    parser.add_argument("--between-mbps", type=float, default=100.0)
    parser.add_argument("--delay-ms", type=float, default=2.0, help="of one direction")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--channels", type=int, default=64, help="of the network that is split")
    parser.add_argument("--json", type=Path)
    for name in ("--chain", "--peer-url"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--until-mbps", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--device", nargs=2, action="append", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        on_coordinator(options)
        return
    if os.geteuid() != 0:
        raise SystemExit("benchmarks.links_changes: namespaces take root; run it as root")
    with tempfile.TemporaryDirectory() as folder:
        chain = write_chain(Path(folder) / "chain", channels=options.channels)
        found = {
            "idle": [idle(mbps, options, chain) for mbps in options.mbps],
            "straight": [straight(mbps, options, chain) for mbps in options.mbps],
        }
    shown(f"an idle link becomes {options.factor:g} times as fast", found["idle"])
    shown(f"through the coordinator, and straight over {options.between_mbps:g} Mbit/s", found["straight"])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

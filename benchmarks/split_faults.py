"""Requests over several devices while these and their links fail at random: what is lost, twice, wrong or late.

    python -m benchmarks.split_faults [--requests 10000] [--coordinators 2] [--deadline-ms 500] [--pause-s 0.3] [--gap-s 0.03]
        [--json FILE]

Two devices, each a process of its own behind a relay, serve segments of one SubNet to each coordinator. The first gives values
straight to the second, over a relay of their own. Every `pause-s` a fault is drawn, held for a while, and mended: a device
killed and started again, a device frozen, a link cut, cut in the middle of a tensor or of an answer, a garbled tensor or
answer, a link that holds everything, and a link of 0.1 Mbit/s; most of these on the link between the two devices, too. A
third device answers with other weights than it says, and must be found by the checks. A fourth has another SubNet by its
digest, and must never run.

*Lost*: no answer. *Twice*: more answers than requests. *Wrong*: other than the files' own answers by more than 1e-3 of the
largest value; of the third device only until it is found, which is counted apart. *Late*: after the deadline.

Bars: none lost, none twice, none wrong but for the third device's, none late; the third and fourth device excluded.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import (
    COORDINATOR,
    PlacedSegments,
    SplitAnswer,
    SplitNetwork,
    SplitOptions,
    SplitSubNet,
)
from benchmarks.faults import Fault, failing
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import Reference, ServingDevice, inputs, same, serving, write_chain
from tests.support.links.hostile import HostileDevice, hostile
from tests.support.links.relay import LinkRelay, address_of, relayed
from tests.support.threads import all_at_once

SLOW_MBPS = 0.1
IMAGES = 64
SWITCH_S = 5e-4
"""Coordinators, relays and the third device are threads of this process, which wait for each other so long at most."""
TOLERANCE = 1e-3
PLANS = [
    (COORDINATOR, "stranger", "stranger", "stranger"),
    (COORDINATOR, "liar", "liar", "liar"),
    (COORDINATOR, "a", "a", "b"),
    (COORDINATOR, "a", "a", "a"),
    (COORDINATOR, "b", "b", "b"),
]
STRAIGHT = "a→b"


class FaultyDevice:
    """A device that can be killed and started again behind the same relays. peers: to which it may give values.

    relay: towards coordinators. between: towards other devices.
    """

    def __init__(self, *peers: "FaultyDevice") -> None:
        self._stack = ExitStack()
        self._options = [word for one in peers for word in ("--allow-peer", f"127.0.0.1:{one.between.port}")]
        self.device: ServingDevice = self._stack.enter_context(serving("onnxruntime", *self._options))
        self.relay: LinkRelay = self._stack.enter_context(relayed(self.device.url))
        self.between: LinkRelay = self._stack.enter_context(relayed(self.device.url))
        self._processes = ExitStack()

    @property
    def address(self) -> DeviceAddress:
        return DeviceAddress(url=address_of(self.relay), token=TOKEN, peer_url=address_of(self.between))

    def kill(self) -> None:
        self.device.process.kill()
        self.device.process.wait()

    def restart(self) -> None:
        self.device = self._processes.enter_context(serving("onnxruntime", *self._options))
        parts = urlsplit(self.device.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.relay.target = self.between.target = (parts.hostname, parts.port)

    def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.device.process.pid, number)

    def slow(self, mbps: float | None) -> None:
        self.relay.mbps = {"up": mbps, "down": mbps}

    def close(self) -> None:
        self.stop(signal.SIGCONT)
        self._processes.close()
        self._stack.close()


DeviceAct = Callable[[FaultyDevice], None]
FAULTS: dict[str, tuple[DeviceAct, DeviceAct]] = {
    "killed": (FaultyDevice.kill, FaultyDevice.restart),
    "frozen": (lambda one: one.stop(signal.SIGSTOP), lambda one: one.stop(signal.SIGCONT)),
    "cut": (lambda one: one.relay.cut(), lambda one: one.relay.mend()),
    "cut in a tensor": (lambda one: one.relay.cut_after("up", 2000), lambda one: one.relay.mend()),
    "cut in an answer": (lambda one: one.relay.cut_after("down", 200), lambda one: one.relay.mend()),
    "garbled tensor": (lambda one: one.relay.flip_after("up", 2000), lambda one: None),
    "garbled answer": (lambda one: one.relay.flip_after("down", 215), lambda one: None),
    "held": (lambda one: one.relay.hold(), lambda one: one.relay.release()),
    "0.1 Mbit/s": (lambda one: one.slow(SLOW_MBPS), lambda one: one.slow(None)),
    "straight: cut": (lambda one: one.between.cut(), lambda one: one.between.mend()),
    "straight: cut in a tensor": (lambda one: one.between.cut_after("up", 2000), lambda one: one.between.mend()),
    "straight: garbled tensor": (lambda one: one.between.flip_after("up", 2000), lambda one: None),
    "straight: held": (lambda one: one.between.hold(), lambda one: one.between.release()),
}


def faults_of(devices: Sequence[FaultyDevice]) -> list[Fault]:
    """Each fault of each device, by one name for all devices."""
    return [
        Fault(name, partial(begin, device), partial(end, device))
        for name, (begin, end) in sorted(FAULTS.items())
        for device in devices
    ]


def asked(network: SplitNetwork, xs: list[np.ndarray], options: argparse.Namespace) -> list[Future[SplitAnswer]]:
    """All requests, so many in flight at once."""
    room = threading.Semaphore(options.in_flight)
    futures = []
    for number in range(options.requests):
        room.acquire()
        future = network.submit(xs[number % IMAGES], options.deadline_ms)
        future.add_done_callback(lambda _: room.release())
        futures.append(future)
        time.sleep(options.gap_s)
    return futures


def judged(network: SplitNetwork, futures: list[Future[SplitAnswer]], expected: list[np.ndarray]) -> dict[str, Any]:
    """What became of a coordinator's requests."""
    found: Counter[str] = Counter()
    latencies_ms = []
    for number, future in enumerate(futures):
        try:
            answer = future.result(60)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request has no answer
            found["lost"] += 1
            print(f"lost: {error!r}")
            continue
        right = same(answer.answer, expected[number % IMAGES], TOLERANCE)
        by_liar = "liar" in answer.devices
        found["late"] += answer.late
        found["wrong"] += not right and not by_liar
        found["wrong_until_found"] += not right and by_liar
        found["on_coordinator"] += answer.on_coordinator is not None
        found["sent"] += any(name != COORDINATOR for name in answer.devices)
        found["over_two"] += {"a", "b"} <= set(answer.devices)
        latencies_ms.append(answer.latency_ms)
    keys = ("lost", "wrong", "late", "wrong_until_found", "on_coordinator", "sent", "over_two")
    straight = [event.state for event in network.events if event.device == STRAIGHT]
    return {
        "requests": len(futures),
        **{key: found[key] for key in keys},
        "twice": max(0, network.counts.answered - len(latencies_ms)),
        "straight_lost": straight.count("out"),
        "straight_again": straight[1:].count("in"),
        "liar": network.states["liar"][0],
        "stranger": network.states["stranger"][0],
        "p50_ms": float(np.median(latencies_ms)),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
    }


def measured(options: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], Counter[str]]:
    """A row for each coordinator, and the faults."""
    split = SplitSubNet.open(write_chain(folder / "chain"))
    xs = inputs(split, IMAGES)
    expected = [Reference(split)(x) for x in xs]
    liar = HostileDevice(split, values=lambda arrays: [array * np.float32(1.05) for array in arrays])
    chosen = SplitOptions(check_share=options.check_share, spare_ms=options.spare_ms, seed=options.seed)
    plans = [PlacedSegments(devices=devices) for devices in PLANS]
    stranger = HostileDevice(split, digest="0" * 64)
    second = FaultyDevice()
    devices = [FaultyDevice(second), second]
    with ExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
        addresses = {"a": devices[0].address, "b": devices[1].address}
        addresses |= {"liar": stack.enter_context(hostile(liar)), "stranger": stack.enter_context(hostile(stranger))}
        networks = [
            stack.enter_context(SplitNetwork(split, addresses, plans, chosen)) for _ in range(options.coordinators)
        ]
        assert all(network.wait_for("a", "b", "liar", timeout_s=60) for network in networks)
        rows: dict[int, dict[str, Any]] = {}

        def coordinator(number: int) -> None:
            rows[number] = judged(networks[number], asked(networks[number], xs, options), expected)

        with failing(faults_of(devices), options.pause_s, options.seed) as faults:
            all_at_once(*(partial(coordinator, number) for number in range(options.coordinators)))
        assert not stranger.runs, "a device with another SubNet has run segments"
        return [rows[number] for number in sorted(rows)], faults


def main() -> None:
    """Measure, print, and end with 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, help="of all coordinators together")
    parser.add_argument("--coordinators", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=4, help="of each coordinator")
    parser.add_argument("--deadline-ms", type=float, default=500.0)
    parser.add_argument("--gap-s", type=float, default=0.03, help="between requests of a coordinator")
    parser.add_argument("--pause-s", type=float, default=0.3, help="between faults, mean")
    parser.add_argument(
        "--spare-ms", type=float, default=30.0, help="of the coordinator, which shares a process with the relays"
    )
    parser.add_argument("--check-share", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.requests //= options.coordinators
    sys.setswitchinterval(SWITCH_S)
    with tempfile.TemporaryDirectory() as folder:
        rows, faults = measured(options, Path(folder))
    table = Table(title=f"{sum(faults.values())} faults: {', '.join(f'{n} {name}' for name, n in faults.items())}")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=140).print(table)
    if options.json is not None:
        options.json.write_text(
            json.dumps({"coordinators": rows, "faults": faults, "options": vars(options)}, default=str)
        )
    missed = [key for row in rows for key in ("lost", "twice", "wrong", "late") if row[key]]
    missed += [name for row in rows for name in ("liar", "stranger") if row[name] != "excluded"]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

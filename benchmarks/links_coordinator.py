"""The coordinator's part of `benchmarks.links`, in its namespace: times of segments, or requests by plans over links.

    python -m benchmarks.links_coordinator CHAIN --times-s 3 [--device NAME tcp://HOST:PORT]…
    python -m benchmarks.links_coordinator CHAIN --device NAME tcp://HOST:PORT [--device …]
        --plans '[["fp32", ["coordinator", "NAME", …]], …]' [--coordinator-ms '[1.5, …]'] [--requests 30] [--limit-s 10]

It prints `ready`, waits for a line, and prints its result as JSON. So its share of the CPU can begin after its start. Times are
lists of those of the coordinator, or of each device. Values between two devices go through the coordinator.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from adaptive_runtime.offload.links import DeviceAddress, MeasuredLink
from adaptive_runtime.offload.split import (
    COORDINATOR,
    LinkUse,
    PlacedSegments,
    SplitAnswer,
    SplitNetwork,
    SplitOptions,
    SplitSubNet,
)
from adaptive_runtime.offload.split.replanning import CoordinatorCosts
from adaptive_runtime.offload.split.segments import CoordinatorSegments
from profiling_agents.messages import CODED_BYTES, ActivationCoding, ServedSubNet
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import inputs

WARM_UPS, LEAST_WARM_UPS, LEAST_REQUESTS, LEAST_RUNS = 24, 3, 3, 10
CONNECT_S, DEADLINE_MS = 120.0, 600_000.0


class OnePlan(CoordinatorCosts):
    """A choice that is set between requests."""

    def __init__(self, plan: PlacedSegments, coordinator_ms: Sequence[float]) -> None:
        super().__init__(coordinator_ms)
        self.plan = plan
        self.coding: ActivationCoding = "fp32"

    def choose(self, links: Mapping[str, MeasuredLink]) -> PlacedSegments:
        """The plan that is set."""
        return self.plan

    @property
    def known(self) -> dict[str, float]:
        """How much slower the coordinator is now, and what a run there and one elsewhere take beyond their segments."""
        elsewhere_ms = self.elsewhere_ms(self.coding)
        return {"slow_down": self.slow_down or 1.0, "handed_ms": self.handed_ms, "elsewhere_ms": elsewhere_ms}

    @property
    def reason(self) -> str:
        """Nothing else was set."""
        return "it is measured"


def times_ms(split: SplitSubNet, for_s: float) -> list[float]:
    """The mean time of each segment in runs of the whole chain: under a quota a median would miss the waits."""
    coordinator = CoordinatorSegments(split)
    (x,) = inputs(split, 1)
    found: list[tuple[float, ...]] = []
    end_s = time.monotonic() + for_s
    last = len(split.subnet.segments) - 1
    while time.monotonic() < end_s or len(found) < LEAST_RUNS:
        found.append(coordinator.run({split.subnet.input: x}, 0, last).took_ms)
    means: list[float] = np.mean(found, axis=0).tolist()
    return means


def device_times_ms(split: SplitSubNet, name: str, url: str, for_s: float) -> list[float]:
    """The mean time that a device computes for each segment; those in front of it and behind it run on the coordinator."""
    count = len(split.subnet.segments)
    every = [tuple(name if at % 2 == first else COORDINATOR for at in range(count)) for first in range(min(2, count))]
    (x,) = inputs(split, 1)
    took_ms: list[list[float]] = [[] for _ in range(count)]
    with connected(split, {name: url}, [1.0] * count) as (network, choice):
        for devices in every:
            choice.plan = PlacedSegments(devices=devices)
            end_s, found = time.monotonic() + for_s / len(every), list[SplitAnswer]()
            while time.monotonic() < end_s or len(found) < LEAST_WARM_UPS + LEAST_RUNS:
                found.append(network.infer(x, DEADLINE_MS))
            for leg in (leg for one in found[LEAST_WARM_UPS:] for leg in one.segments):
                if leg.peer is not None:
                    took_ms[leg.first].append(leg.peer.computed_ms)
    return [float(np.mean(one)) for one in took_ms]


@contextmanager
def connected(
    split: SplitSubNet, urls: Mapping[str, str], coordinator_ms: Sequence[float]
) -> Iterator[tuple[SplitNetwork, OnePlan]]:
    """A network all of whose devices are in, and its choice, which begins with all on the coordinator.

    urls: of devices, by name.
    """
    choice = OnePlan(PlacedSegments(devices=(COORDINATOR,) * len(split.subnet.segments)), coordinator_ms)
    devices = {name: DeviceAddress(url=url, token=TOKEN) for name, url in urls.items()}
    with SplitNetwork(split, devices, choice, SplitOptions(check_share=0.0, direct=False)) as network:
        if not network.wait_for(timeout_s=CONNECT_S):
            raise SystemExit(f"not connected: {network.states}")
        yield network, choice


def measured(
    split: SplitSubNet,
    urls: Mapping[str, str],
    plans: Sequence[tuple[ActivationCoding, Sequence[str]]],
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """For each plan: what is known of links and coordinator before each request that counts, what one sends, all latencies."""
    (x,) = inputs(split, 1)
    coordinator_ms = options.coordinator_ms or [1.0] * len(split.subnet.segments)
    with connected(split, urls, coordinator_ms) as (network, choice):
        rows = []
        for coding, devices in plans:
            plan = PlacedSegments(devices=tuple(devices))
            choice.plan, choice.coding = plan, coding
            begin_s = time.monotonic()
            for number in range(WARM_UPS):
                if number < LEAST_WARM_UPS or time.monotonic() < begin_s + options.limit_s / 2:
                    network.infer(x, DEADLINE_MS)
            known: list[dict[str, Any]] = []
            found: list[SplitAnswer] = []
            end_s = time.monotonic() + options.limit_s
            while len(found) < options.requests and (time.monotonic() < end_s or len(found) < LEAST_REQUESTS):
                links = {name: link.model_dump() for name, link in network.links.items()}
                known.append({"links": links, **choice.known})
                found.append(network.infer(x, DEADLINE_MS))
            if any(one.on_coordinator for one in found):
                raise SystemExit(f"finished on the coordinator: {found[-1].on_coordinator}")
            sent = {name: use.model_dump() for name, use in uses(split.subnet, plan, CODED_BYTES[coding]).items()}
            rows.append({"known": known, "sent": sent, "latencies_ms": [one.latency_ms for one in found]})
        return rows


def uses(subnet: ServedSubNet, plan: PlacedSegments, value_bytes: int) -> dict[str, LinkUse]:
    """Messages and bytes of a request over the link of each device that its plan has."""

    def bytes_of(names: Iterable[str]) -> int:
        return sum(value_bytes * int(np.prod(subnet.shapes[name])) for name in names)

    legs = {name: [leg for leg in plan.segments if leg.device == name] for name in sorted(plan.peers)}
    return {
        name: LinkUse(
            messages=len(own),
            up_bytes=sum(bytes_of(subnet.entering(leg.first, leg.last)) for leg in own),
            down_bytes=sum(bytes_of(subnet.leaving(leg.first, leg.last)) for leg in own),
        )
        for name, own in legs.items()
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chain")
    parser.add_argument("--times-s", type=float)
    parser.add_argument("--device", nargs=2, metavar=("NAME", "URL"), action="append", default=[])
    parser.add_argument("--plans", type=json.loads, default=[])
    parser.add_argument(
        "--coordinator-ms",
        type=json.loads,
        metavar="JSON",
        help="times of the segments on the coordinator, as planned with",
    )
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--limit-s", type=float, default=10.0, help="for the requests of one plan")
    options = parser.parse_args()
    split = SplitSubNet.open(options.chain)
    print("ready", flush=True)
    sys.stdin.readline()
    if options.times_s is None:
        print(json.dumps(measured(split, dict(options.device), options.plans, options)))
    elif options.device:
        print(json.dumps([device_times_ms(split, name, url, options.times_s) for name, url in options.device]))
    else:
        print(json.dumps([times_ms(split, options.times_s)]))


if __name__ == "__main__":
    main()

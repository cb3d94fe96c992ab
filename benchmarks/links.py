"""Networks over devices and shaped links: predicted beside measured latency, and plans beside those of other methods.

    python -m benchmarks.links [--networks resnet18 …] [--mbps 1 5 10 50 100] [--delay-ms 2 5 10 20 50] [--coordinator-cpus
    0.25] [--device-cpus CPUS] [--device-backend onnxruntime] [--second-device-backend openvino [--second-mbps MBPS]
    [--second-delay-ms 5]] [--coding fp32] [--requests 30] [--limit-s 8] [--json links.json] [--markdown] [--quick]

It takes root, `ip`, `tc`, and control groups of version 1. The coordinator and the device have a network namespace each
(`benchmarks.linked_devices`); the coordinator may use a quarter of a CPU, in each 5 ms. For each network, its segments
between single values are timed on the coordinator and on the device, and scaled to the time of the whole network. From
these times and the link as it is shaped, each method places the segments: ours (exact), all on the coordinator, all remote,
Neurosurgeon (the best single cut), DADS (the minimum cut), and a neighbour search as that of CAS. Then each different plan
is run over each link, one request after the other. As the run time does after its first requests, ours takes the faster one
of its plans, in --coding and in fp32, and goes back to all on the coordinator where this is predicted to be faster, or
slower by less than the margin for a change.

*Predicted*: before each request, from times of segments, the link as the coordinator has measured it, how much slower the
coordinator's runs were than planned, and what they took beyond their segments, as the run time knows all three; the median.
*Measured*: p50. --coding: of the tensors that ours may send; the others send fp32. Where methods agree, their plan is
measured once. Where fewer than three plans are different, single cuts are measured besides.

--second-device-backend: the coordinator has a second device, behind a link of its own. --mbps and --delay-ms are of the
first one's link; the second one's has the same bandwidth unless it is told. Values between the devices go through the
coordinator, in plans as in requests (`SplitOptions(direct=False)`). Where no method uses both devices, the fastest plan
that does is measured besides.

Bars: 90 % of all predictions within ±10 % of the measured latency; at every link ours takes at most 1.03 times the best of the
others; over all links ours takes 20 % less than each of the others on average. With the defaults there are 100 links and at
least 300 plans. What is in the file of --json is not measured again; a run that was ended goes on. --quick: two networks,
four links.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaptive_runtime.base.files import replace_file
from adaptive_runtime.offload.split import ReplanRules
from benchmarks.linked_devices import namespaces, served, shaped
from benchmarks.links_methods import (
    ALL_ON_COORDINATOR,
    DEVICE,
    OTHERS,
    OURS,
    SECOND_DEVICE,
    CodedPlan,
    Groups,
    NetworkPlans,
    fine_groups,
    operators_of,
    predicted_ms,
    super_net,
    through_coordinator,
)
from benchmarks.shaped_links import ShapedLink, told_by_coordinator
from benchmarks.tables import show
from profiling_agents.messages import CODED_BYTES
from tailor_ir import SuperNet
from tasks.placement.partition import write_chain

NETWORKS = ("mobilenetv2_100", "resnet18", "resnet50", "vit_tiny_patch16_224")
MBPS, DELAYS_MS = (1.0, 5.0, 10.0, 50.0, 100.0), (2.0, 5.0, 10.0, 20.0, 50.0)
QUICK = {"networks": NETWORKS[:2], "mbps": (10.0, 100.0), "delay_ms": (2.0, 20.0), "requests": 5, "limit_s": 4.0}
SETTINGS = (
    "networks",
    "mbps",
    "delay_ms",
    "coordinator_cpus",
    "device_cpus",
    "device_backend",
    "coding",
    "requests",
    "limit_s",
)
SECOND_SETTINGS = ("second_device_backend", "second_mbps", "second_delay_ms")
"""Options that a file of results is of, the latter ones with a second device."""
OFF_BAR, WITHIN_BAR, WORSE_BAR, LESS_BAR = 0.10, 0.90, 1.03, 0.20
BACKENDS = ("onnxruntime", "openvino")
TIMES_S = 6.0
COORDINATOR = "benchmarks.links_coordinator"
Row = dict[str, Any]
Times = list[list[float]]
"""Of each segment [ms], on the coordinator and on each device."""


class Results:
    """The file of results, written after each step."""

    def __init__(self, file: Path, options: argparse.Namespace) -> None:
        names = SETTINGS + (SECOND_SETTINGS if options.second_device_backend else ())
        self.file, settings = file, {name: getattr(options, name) for name in names}
        self.content: Row = {"settings": json.loads(json.dumps(settings)), "times": {}, "rows": []}
        if file.exists():
            found = json.loads(file.read_text())
            if found["settings"] != self.content["settings"]:
                raise SystemExit(f"{file}: is of other options; give another --json FILE")
            self.content = found

    @property
    def rows(self) -> list[Row]:
        """A row for each network and link."""
        rows: list[Row] = self.content["rows"]
        return rows

    def has(self, network: str, link: ShapedLink) -> bool:
        """Whether it is measured."""
        return any((row["network"], row["mbps"], row["delay_ms"]) == (network, *link) for row in self.rows)

    def times(self, name: str, chain: Path, unlimited: Mapping[str, str], options: argparse.Namespace) -> Times:
        """Times of the segments of a chain, measured once, on the coordinator and on the devices, which have loaded it then.

        unlimited: the devices' addresses over links without limits.
        """
        known, words, devices = self.content["times"], ("-m", COORDINATOR, str(chain)), device_words(unlimited)
        if name in known:
            told_by_coordinator(None, *words, *devices)
        else:
            times = ("--times-s", f"{TIMES_S:g}")
            told = (
                told_by_coordinator(options.coordinator_cpus, *words, *times),
                told_by_coordinator(None, *words, *times, *devices),
            )
            known[name] = [one_ms for one in told for one_ms in json.loads(one)]
            self.save()
        found: Times = known[name]
        return found

    def save(self) -> None:
        """Whole or not at all."""
        replace_file(self.file, json.dumps(self.content, indent=1))


def device_words(urls: Mapping[str, str]) -> list[str]:
    """Devices and their addresses, as the coordinator is told them."""
    return [word for name, url in urls.items() for word in ("--device", name, url)]


def links_of(link: ShapedLink, options: argparse.Namespace) -> dict[str, ShapedLink]:
    """The link of each device. link: the first one's."""
    if options.second_device_backend is None:
        return {DEVICE: link}
    return {DEVICE: link, SECOND_DEVICE: ShapedLink(options.second_mbps or link.mbps, options.second_delay_ms)}


@contextmanager
def unlimited_devices(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The devices serve segments, each in its namespace; their addresses over links without limits."""
    backends = {DEVICE: options.device_backend, SECOND_DEVICE: options.second_device_backend}
    words = {name: ("--backend", backend) for name, backend in backends.items() if backend is not None}
    with namespaces(words) as devices, served(words, options.device_cpus):
        yield {name: device.undelayed_url for name, device in devices.items()}


def written(net: SuperNet, groups: Groups, folder: Path) -> Path:
    """The largest SubNet as a chain, for one thread."""
    write_chain(net, net.space.canonical(net.max_config), groups, folder)
    return folder


def measure(network: str, links: Sequence[ShapedLink], results: Results, options: argparse.Namespace) -> Iterator[Row]:
    """The rows of one network that are missing."""
    net = super_net(network)
    with tempfile.TemporaryDirectory() as name, unlimited_devices(options) as unlimited:
        largest = PlannedChain.of(network, net, links, Path(name), unlimited, results, options)
        for link in links:
            if not results.has(network, link):
                yield {"network": network, **link._asdict(), "plans": over(link, largest, options)}


class PlannedChain(NamedTuple):
    """The largest SubNet of a network as a chain with its times, and what all methods plan. whole: its times as one segment."""

    chain: Path
    plans: NetworkPlans
    times: Times
    whole: Times

    @classmethod
    def of(
        cls,
        network: str,
        net: SuperNet,
        links: Sequence[ShapedLink],
        folder: Path,
        unlimited: Mapping[str, str],
        results: Results,
        options: argparse.Namespace,
    ) -> "PlannedChain":
        """Written, timed and loaded by the devices at their addresses without limits."""
        groups = fine_groups(operators_of(net))
        chains = written(net, groups, folder / "fine"), written(net, (sum(groups, ()),), folder / "whole")
        fine, whole = (results.times(f"{network}, {one.name}", one, unlimited, options) for one in chains)
        conditions = {link: through_coordinator([*links_of(link, options).values()]) for link in links}
        plans = NetworkPlans(net, scaled(fine, whole), conditions, options.coding)
        chain = written(net, plans.groups, folder / "chain")
        return cls(chain, plans, results.times(network, chain, unlimited, options), whole)


def scaled(fine: Times, whole: Times) -> Times:
    """Times of small segments, so that they add up to the time of all as one: each has costs of its own besides."""
    pairs = zip(fine, whole, strict=True)
    return [[sum(all_ms) / sum(each_ms) * one_ms for one_ms in each_ms] for each_ms, all_ms in pairs]


def over(link: ShapedLink, planned: PlannedChain, options: argparse.Namespace) -> list[Row]:
    """All plans over one link."""
    placed = planned.plans.of(link)
    found = requests_over(link, planned.chain, list(placed), planned.times, options)
    return as_the_run_time([{"methods": methods, **row} for methods, row in zip(placed.values(), found, strict=True)])


def requests_over(
    link: ShapedLink, chain: Path, plans: Sequence[CodedPlan], times: Times, options: argparse.Namespace
) -> list[Row]:
    """What requests by plans for the segments of a chain take, predicted and measured. link: the first device's."""
    with shaped(links_of(link, options)) as urls:
        words = ["-m", COORDINATOR, str(chain), *device_words(urls), "--plans", json.dumps(plans)]
        words += ["--coordinator-ms", json.dumps(times[0])]
        words += ["--requests", str(options.requests), "--limit-s", f"{options.limit_s:g}"]
        found = json.loads(told_by_coordinator(options.coordinator_cpus, *words))
    return [
        {
            **plan._asdict(),
            "predicted_ms": predicted_ms(plan.devices, times, row),
            "latency_ms": float(np.median(row["latencies_ms"])),
            **row,
        }
        for plan, row in zip(plans, found, strict=True)
    ]


def as_the_run_time(plans: list[Row]) -> list[Row]:
    """Ours is the plan that is predicted to be the fastest, once requests were sent in each coding, if by a margin.

    Before, nobody knows what a request to another device takes on the coordinator beside its segments and the link.
    """
    coordinator = next(plan for plan in plans if ALL_ON_COORDINATOR in plan["methods"])
    own = [plan for plan in plans if OURS in plan["methods"]]
    best = min(own, key=lambda plan: float(plan["predicted_ms"]))
    if best["predicted_ms"] >= (1 - ReplanRules().margin) * coordinator["predicted_ms"]:
        best = coordinator
    for plan in own:
        plan["methods"].remove(OURS)
    best["methods"].insert(0, OURS)
    return plans


def latency_ms(row: Row, method: str) -> float:
    """p50 of the plan of a method."""
    found: float = next(plan["latency_ms"] for plan in row["plans"] if method in plan["methods"])
    return found


def shown(rows: Sequence[Row], *, markdown: bool) -> None:
    """The table."""
    heads = ["network", "Mbit/s", "delay, ms", "segments", "ours, ms", "predicted", "off", *OTHERS, "of the best"]
    cells = []
    for row in rows:
        own = next(plan for plan in row["plans"] if OURS in plan["methods"])
        others = [latency_ms(row, name) for name in OTHERS]
        cells.append(
            [
                row["network"],
                f"{row['mbps']:g}",
                f"{row['delay_ms']:g}",
                ", ".join(f"{count} {name}" for name, count in Counter(own["devices"]).items()),
                f"{own['latency_ms']:.1f}",
                f"{own['predicted_ms']:.1f}",
                f"{100 * off(own):+.0f} %",
                *(f"{one:.1f}" for one in others),
                f"{own['latency_ms'] / min(others):.2f}",
            ]
        )
    show(heads, cells, markdown=markdown)


def summary(rows: Sequence[Row], *, markdown: bool) -> None:
    """A line for each network and bandwidth, over its delays."""
    heads = ["network", "Mbit/s", "links", "all on the coordinator", f"within ±{OFF_BAR:.0%}", "of the best, at most"]
    cells = []
    for network, mbps in dict.fromkeys((row["network"], row["mbps"]) for row in rows):
        own = [row for row in rows if (row["network"], row["mbps"]) == (network, mbps)]
        every = [off(plan) for row in own for plan in row["plans"]]
        on_coordinator = [
            OURS in plan["methods"] for row in own for plan in row["plans"] if ALL_ON_COORDINATOR in plan["methods"]
        ]
        cells.append(
            [
                network,
                f"{mbps:g}",
                str(len(own)),
                str(sum(on_coordinator)),
                f"{sum(abs(one) <= OFF_BAR for one in every)} of {len(every)}",
                f"{max(of_the_best(row) for row in own):.2f}",
                *(f"{less(own, name):.1%}" for name in OTHERS),
            ]
        )
    show(heads + [f"less than {name}" for name in OTHERS], cells, markdown=markdown)


def of_the_best(row: Row) -> float:
    """The latency of ours over the least of the others."""
    return latency_ms(row, OURS) / min(latency_ms(row, name) for name in OTHERS)


def less(rows: Sequence[Row], name: str) -> float:
    """By which share ours takes less than another method, the mean over links."""
    return float(np.mean([1 - latency_ms(row, OURS) / latency_ms(row, name) for row in rows]))


def off(plan: Row) -> float:
    """How far the prediction is from the measured latency, over that."""
    return float(plan["predicted_ms"] / plan["latency_ms"] - 1)


def bars(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """A line for each bar, and whether it is kept."""
    every = [off(plan) for row in rows for plan in row["plans"]]
    within = sum(abs(one) <= OFF_BAR for one in every)
    ratios = [of_the_best(row) for row in rows]
    kept = sum(ratio <= WORSE_BAR for ratio in ratios)
    found = [
        (
            f"predictions within ±{OFF_BAR:.0%}: {within} of {len(every)} ({within / len(every):.1%}), bar {WITHIN_BAR:.0%}",
            within >= WITHIN_BAR * len(every),
        ),
        (
            f"at most {WORSE_BAR} times the best of the others: {kept} of {len(rows)} links, bar all; worst {max(ratios):.3f}",
            kept == len(rows),
        ),
    ]
    for name in OTHERS:
        share = less(rows, name)
        found.append((f"less than {name}, mean over links: {share:.1%}, bar {LESS_BAR:.0%}", share >= LESS_BAR))
    return found


def add_link_options(parser: argparse.ArgumentParser, mbps: Sequence[float], delays_ms: Sequence[float]) -> None:
    """Options of links, the coordinator, device and requests. mbps, delays_ms: of the links unless others are asked for."""
    add = parser.add_argument
    add("--mbps", type=float, nargs="+", default=mbps, help="of each direction")
    add("--delay-ms", type=float, nargs="+", default=delays_ms, help="of one direction")
    add("--coordinator-cpus", type=float, default=0.25)
    add("--device-cpus", type=float, help="default: as many as there are; one thread computes")
    add("--device-backend", choices=BACKENDS, default=BACKENDS[0], help="of the device; the coordinator has the first")
    add("--requests", type=int, default=30, help="of each plan")
    add("--limit-s", type=float, default=8.0, help="for the requests of one plan; three are made anyway")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    add_link_options(parser, MBPS, DELAYS_MS)
    second = "of a second device; default: there is none"
    parser.add_argument("--second-device-backend", choices=BACKENDS, help=second)
    parser.add_argument("--second-mbps", type=float, help="of its link; default: as the first one's")
    parser.add_argument("--second-delay-ms", type=float, default=5.0, help="of its link, one direction")
    parser.add_argument("--coding", choices=sorted(CODED_BYTES), default="fp32", help="of what ours sends")
    parser.add_argument("--json", type=Path, default=Path("links.json"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two networks, four links; some three minutes")
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(QUICK)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, print the table, and end with 1 where a bar is missed."""
    options = parsed(argv)
    results = Results(options.json, options)
    links = [ShapedLink(*one) for one in product(options.mbps, options.delay_ms)]
    for network in options.networks:
        if all(results.has(network, link) for link in links):
            continue
        require_root()
        for row in measure(network, links, results, options):
            results.rows.append(row)
            results.save()
            print(f"{network}, {row['mbps']:g} Mbit/s, {row['delay_ms']:g} ms: {len(row['plans'])} plans", flush=True)
    shown(results.rows, markdown=options.markdown)
    summary(results.rows, markdown=options.markdown)
    told(bars(results.rows))


def require_root() -> None:
    """SystemExit for other users."""
    if os.geteuid() != 0:
        raise SystemExit("namespaces take root; run it as root")


def told(found: Sequence[tuple[str, bool]]) -> None:
    """Print bars; SystemExit where one is missed."""
    for line, kept in found:
        print(f"{line}: {'yes' if kept else 'NO'}")
    if not all(kept for _, kept in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

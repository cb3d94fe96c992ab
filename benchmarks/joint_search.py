"""SubNet, devices and coding in one exact search: how long a budget takes, and what it saves beside other methods.

    python -m benchmarks.joint_search [--presets resnet50 …] [--devices 2 3] [--budgets 10] [--json FILE] [--markdown]

Spaces of presets, random weights. Latencies of operators follow from MACs at a rate for each device, with random factors (e to
the power of a normal number, deviation 0.3); sensitivities are those of `benchmarks.search`; a coding loses 0 (fp16) and up to
0.2 points (int8) at each cut. Links: 1, 5, 10, 50, 100 Mbit/s, messages of 5 ms.

*Seconds*: processor time of one thread for a budget, the tables made before: the mean and the slowest over budgets at equal
ratios from the fastest to the best. *Saves*: at accuracies of the largest SubNet less 0, 0.5, 1, 2 and 4 points, how much less
time the joint optimum takes than the least of each other method with that accuracy, by predicted latency: the fastest SubNet
at home; the same SubNet split exactly; the fastest SubNet for a server that gets the input; and the largest SubNet split
exactly, in fp32. Geometric means.

Bar: a budget in at most 2 s.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from benchmarks.elastic import compiled
from benchmarks.search import predictors
from benchmarks.tables import show
from profiling_agents.messages import ActivationCoding
from solvers.chain import Chain
from solvers.exact import optimum
from solvers.partition import PartitionConditions
from solvers.tables import Codes, Table
from tailor_ir import OperatorFeature, SuperNet, find_pieces
from tasks.placement.joint_problem import JointSearch, JointSpace, JointTerms
from tasks.search.settings import Settings

BAR_S = 2.0
NAMES = ("phone", "server", "tablet")
MACS_PER_MS, STEP_MS = (4e6, 1e8, 1.5e7), (0.05, 0.03, 0.04)
BANDWIDTHS_MBPS, LATENCY_MS = (1.0, 5.0, 10.0, 50.0, 100.0), 5.0
CODINGS: tuple[ActivationCoding, ...] = ("int8", "fp16", "fp32")
POINTS = (0.0, 0.5, 1.0, 2.0, 4.0)
OTHERS = ("home alone", "home's SubNet, split", "all remote", "largest, split")


@dataclass(frozen=True)
class RandomTimes:
    """Times by MACs, with a random factor for each operator."""

    name: str
    of: Mapping[OperatorFeature, float]
    offset_ms: float = 0.0

    def operator_ms(self, feature: OperatorFeature) -> float:
        """Latency of an operator [ms]."""
        return self.of[feature]


def times_of(net: SuperNet, device: int) -> RandomTimes:
    """Of one device."""
    rng = np.random.default_rng(device)
    rate, step_ms = MACS_PER_MS[device], STEP_MS[device]
    times = {one: step_ms + one.macs / rate * float(np.exp(rng.normal(0, 0.3))) for one in net.unique_operators()}
    return RandomTimes(NAMES[device], times)


def terms_of(net: SuperNet, devices: int, bandwidth_mbps: float) -> JointTerms:
    """A joint problem."""
    pieces = find_pieces(net.pre_partition())
    losses = np.zeros((len(pieces.crossing), len(CODINGS)))
    losses[:, 0] = np.random.default_rng(0).uniform(0.0, 0.002, len(losses))
    return JointTerms(
        space=JointSpace(space=net.space, pieces=pieces, devices=devices, codings=len(CODINGS)),
        devices=[times_of(net, device) for device in range(devices)],
        conditions=PartitionConditions.of(devices, bandwidth_mbps, LATENCY_MS),
        codings=CODINGS,
        losses=losses,
    )


def budget_seconds(search: JointSearch, budgets: int) -> tuple[list[float], list[str]]:
    """Seconds of each budget, and how each search ended."""
    ends = search.problem.evaluate(np.stack([search.quickest(), search.best()]))
    seconds, stopped = [], []
    for budget_ms in np.geomspace(1.02 * ends.latency_ms[0], ends.latency_ms[1], budgets).tolist():
        start = time.process_time()
        found = search.winner(np.array([budget_ms]))
        seconds.append(time.process_time() - start)
        stopped.append(found.stopped)
        assert search.latency.predict(found.code[None])[0] <= budget_ms * (1 + 1e-9)
    return seconds, stopped


class LeastLatency:
    """The code with the least latency of those with an accuracy, some columns known."""

    def __init__(self, search: JointSearch, known: Mapping[int, int]) -> None:
        self.search, self.known = search, dict(known)
        sizes = search.space.cardinalities.tolist()
        gain = [table.under(known).scaled(-1.0) for table in search.latency.tables]
        lost = [Table.constant(1.0), *(table.under(known).scaled(-1.0) for table in search.accuracy.tables)]
        sizes = [1 if column in known else size for column, size in enumerate(sizes)]
        derived = () if 0 in known else search.space.derived  # of a known SubNet they are known, too
        self.chain = Chain(sizes, gain, [lost], derived, search.space.groups)

    def code(self, lost: float) -> Codes:
        """The code that loses at most so much of the largest SubNet's score."""
        code = optimum(self.chain, np.array([1.0 + lost])).code.copy()
        own = {column: value for column, value in self.known.items() if column < len(code)}  # none derived
        code[list(own)] = list(own.values())
        return code

    def ms(self, lost: float) -> float:
        """Its latency."""
        return float(self.search.latency.predict(self.code(lost)[None])[0])


def saved(search: JointSearch) -> dict[str, float]:
    """For each other method the share of its latency that the joint optimum saves, mean over accuracies."""
    space = search.space
    home = dict.fromkeys(space.placements, space.home) | {space.coding: space.codings - 1}
    joint, alone = LeastLatency(search, {}), LeastLatency(search, home)
    remote = [LeastLatency(search, dict.fromkeys(space.placements, device)) for device in range(space.home)]
    largest = LeastLatency(search, subnet_columns(space, space.cardinalities - 1) | {space.coding: space.codings - 1})
    ratios: dict[str, list[float]] = {name: [] for name in OTHERS}
    for points in POINTS:
        lost = points / 100
        joint_ms, at_home = joint.ms(lost), alone.code(lost)
        split = LeastLatency(search, subnet_columns(space, at_home) | {space.coding: space.codings - 1})
        others_ms = (
            float(search.latency.predict(at_home[None])[0]),
            split.ms(lost),
            min(one.ms(lost) for one in remote),
            largest.ms(lost),
        )
        for name, ms in zip(OTHERS, others_ms, strict=True):
            ratios[name].append(joint_ms / ms)
    return {name: 1 - geometric_mean(found) for name, found in ratios.items()}


def subnet_columns(space: JointSpace, code: Codes) -> dict[int, int]:
    """The columns of a SubNet, derived ones included."""
    extended = space.space.extended(code[None, : space.variables])[0].tolist()
    return dict(zip(space.columns(range(len(extended))), extended, strict=True))


def row_of(preset: str, net: SuperNet, devices: int, bandwidth_mbps: float, budgets: int) -> dict[str, Any]:
    """All numbers of one space, number of devices and bandwidth."""
    terms = terms_of(net, devices, bandwidth_mbps)
    start = time.process_time()
    _, accuracy = predictors(net, 0)
    search = JointSearch(terms, accuracy, Settings(method="exact"))
    made_s = time.process_time() - start
    seconds, stopped = budget_seconds(search, budgets)
    return {
        "preset": preset,
        "devices": devices,
        "bandwidth_mbps": bandwidth_mbps,
        "codes": float(net.space.codes),
        "pieces": len(terms.space.placements),
        "tables_s": made_s,
        "seconds": seconds,
        "optimal": sum(one == "optimal" for one in stopped),
        "saved": saved(search),
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    seconds = row["seconds"]
    return [
        row["preset"],
        str(row["devices"]),
        f"{row['bandwidth_mbps']:g}",
        str(row["pieces"]),
        f"{row['tables_s']:.2f}",
        f"{np.mean(seconds):.2f} ({max(seconds):.2f})",
        "yes" if max(seconds) <= BAR_S else "NO",
        f"{row['optimal']} of {len(seconds)}",
        *(f"{100 * row['saved'][name]:.0f}%" for name in OTHERS),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=("resnet50",))
    parser.add_argument("--devices", type=int, nargs="+", default=(2, 3), choices=(2, 3))
    parser.add_argument("--bandwidths", type=float, nargs="+", default=BANDWIDTHS_MBPS)
    parser.add_argument("--budgets", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args(argv)
    rows = []
    for preset in arguments.presets:
        net = compiled(preset)
        for devices in arguments.devices:
            for bandwidth_mbps in arguments.bandwidths:
                rows.append(row_of(preset, net, devices, bandwidth_mbps, arguments.budgets))
                if arguments.json:
                    arguments.json.write_text(json.dumps(rows, indent=1))
    heads = ["space", "devices", "Mbit/s", "pieces", "tables, s", "a budget, s (slowest)", "<= 2", "optimal"]
    heads += [f"saves over {name}" for name in OTHERS]
    show(heads, [cells(row) for row in rows], markdown=arguments.markdown, width=220)


if __name__ == "__main__":
    main()

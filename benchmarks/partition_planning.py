"""Plans for several devices: how long one takes, and what it is worth beside other methods.

    python -m benchmarks.partition_planning [--networks resnet50 mobilenetv2_100 …] [--devices 3] [--rounds 50] [--json
    FILE] [--markdown]

Networks of timm at their own resolution, the largest SubNet of each. Times of operators follow from multiply-accumulates at
a rate for each device, so that nothing is measured but the planner. *Pre-partition*: operators, values and cuts of all
SubNets, once. *States*: made once for a SubNet. *Re-plan*: `PartitionPlanner.fastest` under conditions that change each
time. *Look-up*: `PlanEnvelope.at`, a thousand at a time. *Choice*: `EnvelopePlacements.choose`, the look-up that the
coordinator does before each request, with its hysteresis, over links that change each time. Medians.

Exactness: on the first operators of each network all placements are tried (*brute force*); with two devices and no latency
of messages the plan is compared with the minimum cut. *Worse*: how much longer other methods' plans take on average over
five bandwidths and three latencies.

Bars: a re-plan in at most 1 ms, a look-up and a choice in at most 20 µs each, no difference from brute force and minimum cut.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import timm
import torch

import tailor_ir
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import EnvelopePlacements
from benchmarks.tables import show
from solvers.partition import (
    Dataflow,
    PartitionConditions,
    PartitionPlanner,
    PartitionProblem,
    PlanPoint,
    SentValue,
    all_on_coordinator,
    all_remote,
    dads,
    envelope_of,
    minimum_cut,
    neighbour_search,
    neurosurgeon,
    plan_of,
    segments_of,
)
from tasks.placement.partition import placement_plans, plan_ahead

RE_PLAN_BAR_MS, LOOK_UP_BAR_US, DIFFERENCE_BAR = 1.0, 20.0, 1e-6
NETWORKS = ("mobilenetv2_100", "resnet18", "resnet50", "vit_tiny_patch16_224")
MACS_PER_MS = (1e6, 4e6, 3e7, 1e8)
STEP_MS = (0.05, 0.04, 0.03, 0.03)
BANDWIDTHS_MBPS, LATENCIES_MS = (1.0, 5.0, 10.0, 50.0, 100.0), (2.0, 10.0, 50.0)
TRIED = 7  # operators for which all placements are tried
OTHERS = (all_on_coordinator, all_remote, neurosurgeon, dads, neighbour_search)
LOOK_UPS = 1000
NO_SEGMENTS = "0" * 64
"""The digest of plans whose segments are not written."""


def problem_of(dataflow: tailor_ir.SubnetDataflow, devices: int) -> PartitionProblem:
    """The network with times by MACs."""
    macs = np.asarray([one.feature.macs for one in dataflow.operators])[:, None]
    values = (SentValue(writer=v.writer, readers=v.readers, bytes=v.bytes) for v in dataflow.values)
    return PartitionProblem(
        dataflow=Dataflow(steps=len(macs), values=tuple(values)),
        compute_ms=np.asarray(STEP_MS[:devices]) + macs / np.asarray(MACS_PER_MS[:devices]),
    )


def first_steps(problem: PartitionProblem, count: int) -> PartitionProblem:
    """The first operators alone; what later ones read is the output."""
    values = []
    for value in problem.dataflow.values:
        if value.writer < count:
            readers = sorted({min(reader, count) for reader in value.readers})
            values.append(SentValue(writer=value.writer, readers=tuple(readers), bytes=value.bytes))
    return PartitionProblem(dataflow=Dataflow(steps=count, values=tuple(values)), compute_ms=problem.compute_ms[:count])


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and what it gives."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def conditions_of(rng: np.random.Generator, devices: int, *, latency: bool = True) -> PartitionConditions:
    """Other links and loads each time."""
    shape = devices, devices
    return PartitionConditions(
        slow_down=rng.uniform(1.0, 3.0, devices),
        latency_ms=rng.uniform(1.0, 20.0, shape) if latency else np.zeros(shape),
        bandwidth_mbps=np.exp(rng.uniform(0, np.log(200), shape)),
    )


def differences(problem: PartitionProblem, rng: np.random.Generator) -> tuple[float, float]:
    """The largest relative differences from brute force and, with two devices, from the minimum cut."""
    small, by_force = first_steps(problem, TRIED), 0.0
    conditions = conditions_of(rng, problem.devices)
    placements = product(range(problem.devices), repeat=TRIED)
    least_ms = min(plan_of(small, conditions, segments_of(each)).latency_ms(conditions) for each in placements)
    own_ms = PartitionPlanner(small, 99).fastest(conditions).latency_ms(conditions)
    by_force = abs(own_ms - least_ms) / least_ms
    two = PartitionProblem(dataflow=problem.dataflow, compute_ms=problem.compute_ms[:, [0, -1]])
    planner, by_cut = PartitionPlanner(two, 99), 0.0
    for _ in range(5):
        conditions = conditions_of(rng, 2, latency=False)
        cut_ms = minimum_cut(two, conditions, 1).latency_ms(conditions)
        by_cut = max(by_cut, abs(planner.fastest(conditions).latency_ms(conditions) - cut_ms) / cut_ms)
    return by_force, by_cut


def worse(planner: PartitionPlanner) -> dict[str, float]:
    """For each other method, how much longer its plan takes on average."""
    ratios: dict[str, list[float]] = {method.__name__: [] for method in OTHERS}
    for bandwidth_mbps, latency_ms in product(BANDWIDTHS_MBPS, LATENCIES_MS):
        conditions = PartitionConditions.of(planner.problem.devices, bandwidth_mbps, latency_ms)
        own_ms = planner.fastest(conditions).latency_ms(conditions)
        for method in OTHERS:
            found_ms = method(planner.problem, conditions).latency_ms(conditions)
            ratios[method.__name__].append(found_ms / own_ms - 1)
    return {name: mean(found) for name, found in ratios.items()}


def choice_us(problem: PartitionProblem, rng: np.random.Generator, rounds: int) -> tuple[int, float]:
    """How many plans the coordinator chooses among, for all sets of devices, and how long a choice takes [µs]."""
    low, high = PlanPoint(bandwidth_mbps=1.0, slow_down=1.0), PlanPoint(bandwidth_mbps=200.0, slow_down=4.0)
    ahead = plan_ahead(problem, PartitionConditions.of(problem.devices, 200.0, 5.0), low, high)
    names = [f"device {number}" for number in range(problem.devices)]
    plans = placement_plans(ahead, names, [0.0] * problem.devices, NO_SEGMENTS)
    choice = EnvelopePlacements(plans)
    choice.ran_on_coordinator(0, plans.coordinator_ms)
    links = [{name: _link(rng) for name in plans.peers} for _ in range(LOOK_UPS)]
    found_s = [seconds(lambda: [choice.choose(one) for one in links])[0] for _ in range(max(rounds // 10, 3))]
    return len(plans.plans), 1e6 * median(found_s) / LOOK_UPS


def _link(rng: np.random.Generator) -> MeasuredLink:
    up_mbps, down_mbps = np.exp(rng.uniform(0, np.log(200), 2)).tolist()
    return MeasuredLink(up_mbps=up_mbps, down_mbps=down_mbps, round_trip_ms=float(rng.uniform(1, 20)))


def network_row(name: str, devices: int, rounds: int) -> dict[str, Any]:
    """All numbers of one network."""
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    known: Any = model.pretrained_cfg
    net = tailor_ir.compile(model, torch.zeros(1, *known["input_size"]))
    net.operators(net.max_config)  # the table of operators is not the pre-partition's
    cuts_s, cuts = seconds(net.pre_partition)
    dataflow = cuts.under(net.space.row(net.max_config))
    problem, rng = problem_of(dataflow, devices), np.random.default_rng(0)
    states_s, planner = seconds(lambda: PartitionPlanner(problem))
    low, high = PlanPoint(bandwidth_mbps=1.0, slow_down=1.0), PlanPoint(bandwidth_mbps=200.0, slow_down=4.0)
    envelope_s, envelope = seconds(lambda: envelope_of(planner, PartitionConditions.of(devices, 10.0, 5.0), low, high))
    changing = [conditions_of(rng, devices) for _ in range(rounds)]
    planned_s = [seconds(partial(planner.fastest, conditions))[0] for conditions in changing]
    points = [(float(rng.uniform(1, 200)), float(rng.uniform(1, 4))) for _ in range(LOOK_UPS)]
    looked_s = [seconds(lambda: [envelope.at(*point) for point in points])[0] for _ in range(max(rounds // 10, 3))]
    by_force, by_cut = differences(problem, rng)
    chosen_among, chosen_us = choice_us(problem, rng, rounds)
    return {
        "network": name,
        "operators": len(dataflow.operators),
        "pre_partition_ms": 1e3 * cuts_s,
        "states_ms": 1e3 * states_s,
        "transitions": planner.transitions,
        "re_plan_ms": 1e3 * median(planned_s),
        "plans": len(envelope.plans),
        "envelope_ms": 1e3 * envelope_s,
        "look_up_us": 1e6 * median(looked_s) / LOOK_UPS,
        "chosen_among": chosen_among,
        "choice_us": chosen_us,
        "from_brute_force": by_force,
        "from_minimum_cut": by_cut,
        "worse": worse(planner),
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    exact = max(row["from_brute_force"], row["from_minimum_cut"])
    return [
        row["network"],
        str(row["operators"]),
        f"{row['pre_partition_ms']:.0f}",
        f"{row['states_ms']:.0f} ({row['transitions']})",
        f"{row['re_plan_ms']:.2f}",
        "yes" if row["re_plan_ms"] <= RE_PLAN_BAR_MS else "NO",
        f"{row['plans']} in {row['envelope_ms']:.0f}",
        f"{row['look_up_us']:.1f}",
        "yes" if row["look_up_us"] <= LOOK_UP_BAR_US else "NO",
        f"{row['choice_us']:.1f} among {row['chosen_among']}",
        "yes" if row["choice_us"] <= LOOK_UP_BAR_US else "NO",
        f"{exact:.0e}",
        "yes" if exact <= DIFFERENCE_BAR else "NO",
        *(f"{100 * share:+.0f}%" for share in row["worse"].values()),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--devices", type=int, default=3, choices=range(2, len(MACS_PER_MS) + 1))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args(argv)
    rows = [network_row(name, arguments.devices, arguments.rounds) for name in arguments.networks]
    heads = [
        "network",
        "operators",
        "pre-partition, ms",
        "states, ms (transitions)",
        "re-plan, ms",
        "<= 1",
        "plans in ms",
    ]
    heads += [
        "look-up, µs",
        "<= 20",
        "choice, µs",
        "<= 20",
        "from exact",
        "<= 1e-6",
        *(method.__name__ for method in OTHERS),
    ]
    show(heads, [cells(row) for row in rows], markdown=arguments.markdown, width=220)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

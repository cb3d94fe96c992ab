"""What methods make of a network and links, for `benchmarks.links`: segments, placements, and what they are predicted to take.

Segments are what lies between cuts that a single value crosses. All methods get the same segments with the same times. Ours may
send tensors in another coding, of which it knows when it plans; the others send fp32. Values between two devices go through
the coordinator, over both of their links, as the run time sends them where devices have no link to each other.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, groupby, pairwise, permutations, product
from typing import Any, NamedTuple

import numpy as np
import timm
import torch

import tailor_ir
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import COORDINATOR, LinkUse
from benchmarks.shaped_links import ShapedLink
from profiling_agents.messages import CODED_BYTES, ActivationCoding
from solvers.partition import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionPlanner,
    PartitionProblem,
    SentValue,
    all_on_coordinator,
    all_remote,
    dads,
    neighbour_search,
    neurosurgeon,
    plan_of,
    segments_of,
)
from tasks.placement.partition.planning import solver_dataflow

OURS, ALL_ON_COORDINATOR = "ours", "all on the coordinator"
OTHERS = {
    ALL_ON_COORDINATOR: all_on_coordinator,
    "all remote": all_remote,
    "Neurosurgeon": neurosurgeon,
    "DADS": dads,
    "CAS": neighbour_search,
}
DEVICE, SECOND_DEVICE = "device", "second"
NAMES = (COORDINATOR, DEVICE, SECOND_DEVICE)
"""In the order of times and conditions; the last one is not always there."""
LEAST_PLANS = 3
Groups = tuple[tuple[int, ...], ...]
Placement = tuple[str, ...]
FP32: ActivationCoding = "fp32"


class CodedPlan(NamedTuple):
    """The device of each segment, and in which coding tensors cross."""

    coding: ActivationCoding
    devices: Placement


def super_net(name: str) -> tailor_ir.SuperNet:
    """A network of timm at its own resolution, with random weights."""
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    known: Any = model.pretrained_cfg
    return tailor_ir.compile(model, torch.zeros(1, *known["input_size"]))


def fine_groups(dataflow: Dataflow) -> Groups:
    """Operators between cuts that a single value crosses."""
    cuts = [0, *(cut for cut in range(1, dataflow.steps) if dataflow.crossing[cut] == 1), dataflow.steps]
    return tuple(tuple(range(start, end)) for start, end in pairwise(cuts))


def joined(dataflow: Dataflow, groups: Groups, share: float = 1.0) -> Dataflow:
    """The same with a step for each group; what stays inside a group is no value any more. share: of bytes that are sent."""
    number = {step: at for at, group in enumerate(groups) for step in group}
    number |= {INPUT: INPUT, dataflow.steps: len(groups)}
    values = []
    for value in dataflow.values:
        writer = number[value.writer]
        readers = tuple(sorted({number[reader] for reader in value.readers} - {writer}))
        if readers:
            values.append(SentValue(writer=writer, readers=readers, bytes=share * value.bytes))
    return Dataflow(steps=len(groups), values=tuple(values))


def through_coordinator(links: Sequence[ShapedLink]) -> PartitionConditions:
    """The coordinator and a device behind each link; what devices send to each other crosses both of their links."""
    latency_ms = np.array([0.0, *(link.delay_ms for link in links)])
    per_megabit_s = np.array([0.0, *(1 / link.mbps for link in links)])
    crossed_s = np.add.outer(per_megabit_s, per_megabit_s)
    np.fill_diagonal(crossed_s, 1.0)  # of a device to itself, which sends nothing
    return PartitionConditions(
        slow_down=np.ones(len(latency_ms)),
        latency_ms=np.add.outer(latency_ms, latency_ms),
        bandwidth_mbps=1 / crossed_s,
    )


class NetworkPlans:
    """Placements of one network. groups: its segments.

    times_ms: of each of `fine_groups`, on the coordinator and on each device. links: all that are asked for, with the
    conditions under which methods place. coding: of what ours sends, in one of its plans; the other one sends fp32.
    """

    def __init__(
        self,
        net: tailor_ir.SuperNet,
        times_ms: Sequence[Sequence[float]],
        links: Mapping[ShapedLink, PartitionConditions],
        coding: ActivationCoding = FP32,
    ) -> None:
        flow = operators_of(net)
        self.fine = fine_groups(flow)
        compute_ms = np.stack(times_ms, axis=1)
        problems = {
            one: PartitionProblem(
                dataflow=joined(flow, self.fine, CODED_BYTES[one] / CODED_BYTES[FP32]), compute_ms=compute_ms
            )
            for one in dict.fromkeys((coding, FP32))
        }
        self._planners = {one: PartitionPlanner(problem) for one, problem in problems.items()}
        self._problem = problems[FP32]
        self._placed = {link: self._of(conditions) for link, conditions in links.items()}
        cuts = {0, len(self.fine)}
        for placed in self._placed.values():
            cuts |= {cut for _, one in placed for cut, (a, b) in enumerate(pairwise(one), 1) if a != b}
        self._starts = sorted(cuts)[:-1]
        ranges = pairwise(sorted(cuts))
        self.groups = tuple(sum((self.fine[at] for at in range(start, end)), ()) for start, end in ranges)

    def of(self, link: ShapedLink) -> dict[CodedPlan, list[str]]:
        """The device of each segment of `groups`, for each plan, with the methods that chose it."""
        return {
            CodedPlan(coding, tuple(NAMES[one[at]] for at in self._starts)): names
            for (coding, one), names in self._placed[link].items()
        }

    def _of(self, conditions: PartitionConditions) -> dict[tuple[ActivationCoding, tuple[int, ...]], list[str]]:
        """By coding and placement of `fine`. Ours has the best plan in each coding, since the run time chooses among them.

        Where no method uses all devices, the fastest split that does is added; where methods agree, the fastest splits.
        """
        problem = self._problem
        found: dict[tuple[ActivationCoding, tuple[int, ...]], list[str]] = {}
        for coding, planner in self._planners.items():
            own = planner.fastest(conditions)
            found[coding if own.sends else FP32, tuple(own.placement)] = [OURS]
        for name, method in OTHERS.items():
            found.setdefault((FP32, tuple(method(problem, conditions).placement)), []).append(name)
        others = set(range(1, problem.devices))
        ordered = sorted(
            _splits(problem), key=lambda one: plan_of(problem, conditions, segments_of(one)).latency_ms(conditions)
        )
        if not any(others.issubset(placement) for _, placement in found):
            found[FP32, next(one for one in ordered if others.issubset(one))] = []
        for placement in ordered:
            if len(found) >= LEAST_PLANS:
                break
            found.setdefault((FP32, placement), [])
        return found


def _splits(problem: PartitionProblem) -> list[tuple[int, ...]]:
    """Placements that begin on the coordinator and go on to other devices, in any order, to each at most once."""
    steps, others = problem.dataflow.steps, range(1, problem.devices)
    cuts = combinations_with_replacement(range(steps + 1), len(others))
    found = []
    for order, cut in product(permutations(others), cuts):
        stays_of = zip((0, *order), pairwise((0, *cut, steps)), strict=True)
        found.append(tuple(device for device, (start, end) in stays_of for _ in range(start, end)))
    return list(dict.fromkeys(found))


def operators_of(net: tailor_ir.SuperNet) -> Dataflow:
    """Of the largest SubNet."""
    return solver_dataflow(net.pre_partition().under(net.space.row(net.max_config)))


def predicted_ms(devices: Placement, times_ms: Sequence[Sequence[float]], row: Mapping[str, Any]) -> float:
    """The latency of a plan as the run time predicts it before each request, the median.

    Of times of segments, on the coordinator and on each device, and what links and the coordinator are known to be.
    """
    computed_ms = dict.fromkeys(NAMES, 0.0)
    for at, name in enumerate(devices):
        computed_ms[name] += times_ms[NAMES.index(name)][at]
    on_coordinator_ms = computed_ms.pop(COORDINATOR)
    others_ms = sum(computed_ms.values())
    runs_on_coordinator = sum(name == COORDINATOR for name, _ in groupby(devices))
    uses = {name: LinkUse.model_validate(use) for name, use in row["sent"].items()}
    found = []
    for known in row["known"]:
        sent_ms = sum(use.messages * known["elsewhere_ms"] for use in uses.values())
        sent_ms += sum(_crossing_ms(known["links"][name], use) for name, use in uses.items())
        found.append(
            on_coordinator_ms * known["slow_down"] + runs_on_coordinator * known["handed_ms"] + others_ms + sent_ms
        )
    return float(np.median(found))


def _crossing_ms(known: Mapping[str, Any], use: LinkUse) -> float:
    link = MeasuredLink.model_validate(known)
    return (use.messages - 1) * (link.round_trip_ms or 0.0) + link.transfer_ms(use.up_bytes, use.down_bytes)

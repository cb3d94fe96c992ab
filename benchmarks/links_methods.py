"""What methods make of a network and a link, for `benchmarks.links`: segments, placements, and what they are predicted to take.

Segments are what lies between cuts that a single value crosses. All methods get the same segments with the same times. Ours may
send tensors in another coding, of which it knows when it plans; the others send fp32.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import timm
import torch

import tailor_ir
from adaptive_runtime.links import MeasuredLink
from adaptive_runtime.split import HOME
from benchmarks.links_home import DEVICE
from benchmarks.shaped_links import ShapedLink
from profiling_agents.messages import CODED_BYTES, ActivationCoding
from solvers.partition import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionPlanner,
    PartitionProblem,
    SentValue,
    all_at_home,
    all_remote,
    dads,
    neighbour_search,
    neurosurgeon,
)
from tasks.partition.planning import solver_dataflow

OURS, ALL_AT_HOME = "ours", "all at home"
OTHERS = {
    ALL_AT_HOME: all_at_home,
    "all remote": all_remote,
    "Neurosurgeon": neurosurgeon,
    "DADS": dads,
    "CAS": neighbour_search,
}
NAMES = (HOME, DEVICE)
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


class NetworkPlans:
    """Placements of one network. groups: its segments; home_ms, device_ms: their times. links: all that are asked for.

    coding: of what ours sends, in one of its plans; the other one sends fp32.
    """

    def __init__(
        self,
        net: tailor_ir.SuperNet,
        home_ms: Sequence[float],
        device_ms: Sequence[float],
        links: Sequence[ShapedLink],
        coding: ActivationCoding = FP32,
    ) -> None:
        flow = operators_of(net)
        self.fine = fine_groups(flow)
        compute_ms = np.stack([home_ms, device_ms], axis=1)
        problems = {
            one: PartitionProblem(
                dataflow=joined(flow, self.fine, CODED_BYTES[one] / CODED_BYTES[FP32]), compute_ms=compute_ms
            )
            for one in dict.fromkeys((coding, FP32))
        }
        self._planners = {one: PartitionPlanner(problem) for one, problem in problems.items()}
        self._problem = problems[FP32]
        self._placed = {link: self._of(link) for link in links}
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

    def _of(self, link: ShapedLink) -> dict[tuple[ActivationCoding, tuple[int, ...]], list[str]]:
        """By coding and placement of `fine`. Ours has the best plan in each coding, since the run time chooses among them.

        Where methods agree, single cuts are added, the fastest first.
        """
        conditions = PartitionConditions.of(2, link.mbps, link.delay_ms)
        problem = self._problem
        found: dict[tuple[ActivationCoding, tuple[int, ...]], list[str]] = {}
        for coding, planner in self._planners.items():
            own = planner.fastest(conditions)
            found[coding if own.sends else FP32, tuple(own.placement)] = [OURS]
        for name, method in OTHERS.items():
            found.setdefault((FP32, tuple(method(problem, conditions).placement)), []).append(name)
        steps = problem.dataflow.steps
        singles = [(0,) * cut + (1,) * (steps - cut) for cut in range(steps + 1)]
        for placement in sorted(singles, key=lambda one: self._latency_ms(one, conditions)):
            if len(found) >= LEAST_PLANS:
                break
            found.setdefault((FP32, placement), [])
        return found

    def _latency_ms(self, placement: tuple[int, ...], conditions: PartitionConditions) -> float:
        """Of a single cut, by the planner's model."""
        problem, cut = self._problem, placement.count(0)
        computed = problem.compute_ms[:cut, 0].sum() + problem.compute_ms[cut:, 1].sum()
        if cut == problem.dataflow.steps:
            return float(computed)
        sent = problem.dataflow.crossing_bytes[[cut, problem.dataflow.steps]].sum()
        return float(computed + 2 * conditions.latency_ms[0, 1] + sent * conditions.ms_per_byte[0, 1])


def operators_of(net: tailor_ir.SuperNet) -> Dataflow:
    """Of the largest SubNet."""
    return solver_dataflow(net.pre_partition().under(net.space.row(net.max_config)))


def predicted_ms(
    devices: Placement, home_ms: Sequence[float], device_ms: Sequence[float], row: Mapping[str, Any]
) -> float:
    """The latency of a plan as the run time predicts it before each request, the median.

    Of times of segments, and what link and home are known to be.
    """
    pairs = list(zip(devices, home_ms, device_ms, strict=True))
    at_home_ms = sum(home for name, home, _ in pairs if name == HOME)
    others_ms = sum(other for name, _, other in pairs if name != HOME)
    runs_at_home = sum(name == HOME for name, _ in groupby(devices))
    found = []
    for known in row["known"]:
        link = MeasuredLink.model_validate(known["link"])
        sent_ms = 0.0
        if row["messages"]:
            trips_ms = (row["messages"] - 1) * (link.round_trip_ms or 0.0)
            sent_ms = trips_ms + link.transfer_ms(row["up_bytes"], row["down_bytes"])
            sent_ms += row["messages"] * known["elsewhere_ms"]
        found.append(at_home_ms * known["slow_down"] + runs_at_home * known["handed_ms"] + others_ms + sent_ms)
    return float(np.median(found))

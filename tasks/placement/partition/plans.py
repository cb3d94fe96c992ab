"""Plans made ahead for a SubNet over several devices, with its segments as ONNX files: `plans.json` and `segments.json`.

At run time tensors between two other devices may have to go through the coordinator (`COORDINATOR`). In these plans, a byte
between them therefore crosses both links, and a message has the latencies of both. Devices change only at cuts that a
single value crosses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import EARLIER_COORDINATOR
from adaptive_runtime.bundle.chains import SEGMENTS_FILE
from adaptive_runtime.offload.split import (
    COORDINATOR,
    PLANS_FILE,
    LinkUse,
    PlacementPlans,
    PlannedPlacement,
    SplitSubNet,
    StraightUse,
    StraightWay,
    way_name,
)
from adaptive_runtime.offload.split.plans import coded_share
from profiling_agents.messages import MOST_SEGMENTS
from solvers.partition import (
    PartitionConditions,
    PartitionPlan,
    PartitionPlanner,
    PartitionProblem,
    PlanPoint,
    envelope_of,
)
from solvers.tables import Infeasible
from tailor_ir import Choice, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.placement.partition.parts import PLAIN, ChainOptions, Groups, write_chain
from tasks.placement.partition.planning import DeviceTimes, conditions_of, problem_of
from tasks.placement.partition.settings import PartitionSettings

Way = tuple[int, int]
NO_DIGEST = "0" * 64


@dataclass(frozen=True, kw_only=True, eq=False)
class PlansAhead:
    """Plans that are fastest somewhere (the first one sends nothing), and the groups of operators between their cuts."""

    planner: PartitionPlanner
    conditions: PartitionConditions
    low: PlanPoint
    high: PlanPoint
    plans: tuple[PartitionPlan, ...]
    groups: Groups
    straight: frozenset[Way] = frozenset()


def plan_ahead(
    problem: PartitionProblem,
    conditions: PartitionConditions,
    low: PlanPoint,
    high: PlanPoint,
    straight: Iterable[Way] = (),
) -> PlansAhead:
    """The lower envelope of each set of devices, between `low` and `high` of bandwidth and the coordinator's slow-down.

    conditions: slow-down of the other devices, and latencies between the coordinator and them; bandwidth 0: there is no link.
    straight: known direct ways between other devices, whose bandwidth does not change; plans that use them are made in addition
    to plans through the coordinator. Infeasible: the coordinator alone does not keep the limits.
    """
    ways = frozenset(straight)
    planner, devices = PartitionPlanner(problem, widest=1), range(1, problem.devices)
    found = {plan.placement: plan for plan in [planner.fastest(_through_coordinator(conditions, ()).conditions)]}
    linked = [at for at in devices if min(conditions.bandwidth_mbps[0, at], conditions.bandwidth_mbps[at, 0]) > 0]
    for count in range(1, len(linked) + 1):
        for peers in combinations(linked, count):
            own = ways.intersection(permutations(peers, 2))
            for some in {frozenset[Way](), own}:
                through = _through_coordinator(conditions, peers, some)
                envelope = envelope_of(planner, through.conditions, low, high, links=through.crossings)
                found |= {plan.placement: plan for plan in envelope.plans if plan.placement not in found}
    cuts = sorted({0, problem.dataflow.steps}.union(*map(_changes, found)))
    groups = tuple(tuple(range(start, end)) for start, end in pairwise(cuts))
    plans = tuple(found.values())
    return PlansAhead(
        planner=planner, conditions=conditions, low=low, high=high, plans=plans, groups=groups, straight=ways
    )


def placement_plans(ahead: PlansAhead, names: Sequence[str], run_ms: Sequence[float], digest: str) -> PlacementPlans:
    """The plans in the form that the run time reads. names: of all devices, the coordinator first.
    run_ms: time of a run on each device without its operators. digest: of the segments.
    """
    problem = ahead.planner.problem
    coordinator_ms = tuple(float(problem.compute_ms[list(group), 0].sum()) for group in ahead.groups)
    return PlacementPlans(
        digest=digest,
        peers=tuple(names[1:]),
        coordinator_ms=coordinator_ms,
        bandwidth_mbps=(ahead.low.bandwidth_mbps, ahead.high.bandwidth_mbps),
        slow_down=(ahead.low.slow_down, ahead.high.slow_down),
        plans=tuple(_planned(ahead, plan, names, run_ms) for plan in ahead.plans),
        ways={way_name(names[a], names[b]): _way(ahead.conditions, (a, b), run_ms) for a, b in sorted(ahead.straight)},
    )


def _way(conditions: PartitionConditions, way: Way, run_ms: Sequence[float]) -> StraightWay:
    """A direct way with its known bandwidth and latency, without the time of a run on the device at its end."""
    latency_ms = max(float(conditions.latency_ms[way]) - run_ms[way[1]], 0.0)
    return StraightWay(bandwidth_mbps=float(conditions.bandwidth_mbps[way]), latency_ms=latency_ms)


class PlannedAhead(NamedTuple):
    """Plans, whose digest is still unknown, and the operators of each segment."""

    plans: PlacementPlans
    groups: Groups


def plans_ahead(
    net: SuperNet, config: Mapping[str, Choice], tables: Sequence[DeviceTimes], settings: PartitionSettings
) -> PlannedAhead:
    """Plans of a SubNet for the ranges of the settings.

    Plans count bytes of fp32. Fewer bytes in a coding are equivalent to faster links, so with a coding the largest bandwidth is
    higher by this factor. UserError: the coordinator does not keep the limits, or there are too many segments.
    """
    for name in (COORDINATOR, EARLIER_COORDINATOR):
        if name in settings.devices[1:]:
            got = f"a device besides the first is called '{name}'"
            raise UserError("partition.devices", got, allowed="any other name")
    dataflow = net.pre_partition().under(net.space.row(net.space.canonical(config)))
    problem = problem_of(dataflow, tables, settings.model_copy(update={"coding": None}))
    (low_mbps, high_mbps), (least, most) = settings.plans_bandwidth_mbps, settings.plans_slow_down
    low = PlanPoint(bandwidth_mbps=low_mbps, slow_down=least)
    high = PlanPoint(bandwidth_mbps=high_mbps / coded_share(settings.coding or "fp32"), slow_down=most)
    try:
        conditions = conditions_of(tables, settings, high.bandwidth_mbps)
        ahead = plan_ahead(problem, conditions, low, high, _named_ways(settings))
    except Infeasible as error:
        next_step = "raise partition.memory_mib or partition.energy_mj"
        raise UserError("partition.plans: all operators on the coordinator", str(error), next_step=next_step) from error
    if len(ahead.groups) > MOST_SEGMENTS:
        got, next_step = f"the plans have {len(ahead.groups)} segments", "narrow partition.plans_bandwidth_mbps"
        raise UserError("partition.plans", got, allowed=f"at most {MOST_SEGMENTS}", next_step=next_step)
    run_ms = [max(table.offset_ms, 0.0) for table in tables]
    return PlannedAhead(placement_plans(ahead, settings.devices, run_ms, NO_DIGEST), ahead.groups)


def write_plans(
    net: SuperNet,
    config: Mapping[str, Choice],
    tables: Sequence[DeviceTimes],
    settings: PartitionSettings,
    folder: Path,
    options: ChainOptions = PLAIN,
) -> PlacementPlans:
    """Write the segments of a SubNet with `segments.json` and `plans.json` into a folder.

    UserError: as `plans_ahead` and `write_chain`.
    """
    return write_ahead(net, config, plans_ahead(net, config, tables, settings), folder, options)


def write_ahead(
    net: SuperNet, config: Mapping[str, Choice], ahead: PlannedAhead, folder: Path, options: ChainOptions = PLAIN
) -> PlacementPlans:
    """Write the segments of plans, and the plans with their digest. UserError: as `write_chain`."""
    write_chain(net, net.space.canonical(config), ahead.groups, folder, options)
    digest = SplitSubNet.open(folder, f"{options.prefix}{SEGMENTS_FILE}").subnet.digest
    plans = ahead.plans.model_copy(update={"digest": digest})
    write_bytes(folder / f"{options.prefix}{PLANS_FILE}", plans.to_json().encode())
    return plans


@dataclass(frozen=True, slots=True, eq=False)
class _ThroughCoordinator:
    """Some devices whose tensors go through the coordinator. crossings: (D, D), links that a byte between devices crosses."""

    conditions: PartitionConditions
    crossings: NDArray[np.float64]


def _named_ways(settings: PartitionSettings) -> list[Way]:
    """Both directions of each named link between devices other than the coordinator."""
    found = []
    for name, link in settings.links.items():
        a, b = (settings.devices.index(one) for one in settings.pair(name))
        if min(a, b) > 0 and link.bandwidth_mbps > 0:
            found += [(a, b), (b, a)]
    return found


def _through_coordinator(
    conditions: PartitionConditions, peers: tuple[int, ...], straight: frozenset[Way] = frozenset()
) -> _ThroughCoordinator:
    """Conditions for tensors that go through the coordinator. straight: ways that bypass it, and do not change."""
    devices = len(conditions.slow_down)
    crossings, latency_ms, speed = np.zeros((3, devices, devices))
    for a, b in permutations((0, *peers), 2):
        if (a, b) in straight:
            latency_ms[a, b], speed[a, b] = conditions.latency_ms[a, b], conditions.bandwidth_mbps[a, b]
            continue
        ways = [(x, y) for x, y in ((a, 0), (0, b)) if x != y]
        crossings[a, b] = len(ways)
        latency_ms[a, b] = sum(conditions.latency_ms[way] for way in ways)
        speed[a, b] = min(conditions.bandwidth_mbps[way] for way in ways) / len(ways)
    return _ThroughCoordinator(replace(conditions, latency_ms=latency_ms, bandwidth_mbps=speed), crossings)


def _changes(placement: Sequence[int]) -> Iterator[int]:
    """The cuts at which devices change."""
    return (cut for cut, (a, b) in enumerate(pairwise(placement), 1) if a != b)


def _planned(ahead: PlansAhead, plan: PartitionPlan, names: Sequence[str], run_ms: Sequence[float]) -> PlannedPlacement:
    """A plan in the coordinator's view: values go up before each segment on another device, and come down after it."""
    bytes_at, placement = ahead.planner.problem.dataflow.crossing_bytes, plan.placement
    others_ms = float(plan.compute_ms[1:] @ ahead.conditions.slow_down[1:])
    links, straight = (defaultdict[str, Counter[str]](Counter) for _ in range(2))
    for segment in (one for one in plan.segments if one.device):
        others_ms += run_ms[segment.device]
        up, down = int(bytes_at[segment.steps[0]]), int(bytes_at[segment.steps[-1] + 1])
        links[names[segment.device]].update(messages=1, up_bytes=up, down_bytes=down)
    for giver, taker in pairwise(plan.segments):
        if giver.device and taker.device:
            way = way_name(names[giver.device], names[taker.device])
            straight[way].update(messages=1, bytes=int(bytes_at[taker.steps[0]]))
    by_number = (COORDINATOR, *names[1:])
    return PlannedPlacement(
        devices=tuple(by_number[placement[group[0]]] for group in ahead.groups),
        coordinator_ms=float(plan.compute_ms[0]),
        others_ms=others_ms,
        links={name: LinkUse(**use) for name, use in links.items()},
        straight={name: StraightUse(**use) for name, use in straight.items()},
    )

"""Plans made ahead for a SubNet over several devices, with its segments as ONNX files: `plans.json` and `segments.json`.

At run time tensors between two other devices may have to go through the coordinator (`HOME`). In these plans, a byte between
them therefore crosses both links, and a message has the latencies of both. Devices change only at cuts that a single value
crosses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest, ChainSegment, ChainTensor, NcnnPair
from adaptive_runtime.offload.split import (
    HOME,
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
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.placement.partition.parts import digests_of, export_checked, tensor_of, write_ncnn
from tasks.placement.partition.planning import DeviceTimes, conditions_of, problem_of
from tasks.placement.partition.settings import PartitionSettings

Groups = tuple[tuple[int, ...], ...]
Way = tuple[int, int]
FLOAT = "float32"


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
    found = {plan.placement: plan for plan in [planner.fastest(_through_home(conditions, ()).conditions)]}
    linked = [at for at in devices if min(conditions.bandwidth_mbps[0, at], conditions.bandwidth_mbps[at, 0]) > 0]
    for count in range(1, len(linked) + 1):
        for peers in combinations(linked, count):
            own = ways.intersection(permutations(peers, 2))
            for some in {frozenset[Way](), own}:
                through = _through_home(conditions, peers, some)
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
    home_ms = tuple(float(problem.compute_ms[list(group), 0].sum()) for group in ahead.groups)
    return PlacementPlans(
        digest=digest,
        peers=tuple(names[1:]),
        home_ms=home_ms,
        bandwidth_mbps=(ahead.low.bandwidth_mbps, ahead.high.bandwidth_mbps),
        slow_down=(ahead.low.slow_down, ahead.high.slow_down),
        plans=tuple(_planned(ahead, plan, names, run_ms) for plan in ahead.plans),
        ways={way_name(names[a], names[b]): _way(ahead.conditions, (a, b), run_ms) for a, b in sorted(ahead.straight)},
    )


def _way(conditions: PartitionConditions, way: Way, run_ms: Sequence[float]) -> StraightWay:
    """A direct way with its known bandwidth and latency, without the time of a run on the device at its end."""
    latency_ms = max(float(conditions.latency_ms[way]) - run_ms[way[1]], 0.0)
    return StraightWay(bandwidth_mbps=float(conditions.bandwidth_mbps[way]), latency_ms=latency_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """Options of a chain's files. threads: of the coordinator's runtime. ncnn: also write files of ncnn beside each segment.

    statistics: BatchNorm statistics of the SubNet; None: those of the SuperNet.
    """

    threads: int = 1
    ncnn: bool = False
    statistics: Statistics | None = None


ONE_THREAD = ChainOptions()


def write_plans(
    net: SuperNet,
    config: Mapping[str, Choice],
    tables: Sequence[DeviceTimes],
    settings: PartitionSettings,
    folder: Path,
    options: ChainOptions = ONE_THREAD,
) -> PlacementPlans:
    """Write the segments of a SubNet with `segments.json` and `plans.json` into a folder.

    UserError: the coordinator alone does not keep the limits, the network passes values other than float32, or the segments'
    answer differs from the whole SubNet's by more than 1e-5 (in ncnn 1e-4).
    """
    if HOME in settings.devices[1:]:
        raise UserError("partition.devices", f"a device besides the first is called '{HOME}'", allowed="any other name")
    config = net.space.canonical(config)
    ahead = plans_ahead(net, config, tables, settings)
    write_chain(net, config, ahead.groups, folder, options)
    digest = SplitSubNet.open(folder).subnet.digest
    plans = placement_plans(ahead, settings.devices, _run_ms(tables), digest)
    write_bytes(folder / PLANS_FILE, plans.to_json().encode())
    return plans


def plans_ahead(
    net: SuperNet, config: Mapping[str, Choice], tables: Sequence[DeviceTimes], settings: PartitionSettings
) -> PlansAhead:
    """Plans of a SubNet for the ranges of the settings.

    Plans count bytes of fp32. Fewer bytes in a coding are equivalent to faster links, so with a coding the largest bandwidth is
    higher by this factor. UserError: the coordinator does not keep the limits, or there are too many segments.
    """
    dataflow = net.pre_partition().under(net.space.row(config))
    problem = problem_of(dataflow, tables, settings.model_copy(update={"coding": None}))
    (low_mbps, high_mbps), (least, most) = settings.plans_bandwidth_mbps, settings.plans_slow_down
    low = PlanPoint(bandwidth_mbps=low_mbps, slow_down=least)
    high = PlanPoint(bandwidth_mbps=high_mbps / coded_share(settings.coding or "fp32"), slow_down=most)
    try:
        conditions = conditions_of(tables, settings, high.bandwidth_mbps)
        ahead = plan_ahead(problem, conditions, low, high, _named_ways(settings))
    except Infeasible as error:
        next_step = "raise partition.memory_mib or partition.energy_mj"
        raise UserError("partition.plans: all operators at home", str(error), next_step=next_step) from error
    if len(ahead.groups) > MOST_SEGMENTS:
        got, next_step = f"the plans have {len(ahead.groups)} segments", "narrow partition.plans_bandwidth_mbps"
        raise UserError("partition.plans", got, allowed=f"at most {MOST_SEGMENTS}", next_step=next_step)
    return ahead


def placements_ahead(
    ahead: PlansAhead, tables: Sequence[DeviceTimes], settings: PartitionSettings
) -> tuple[PlannedPlacement, ...]:
    """The plans in the form of `plans.json`."""
    return tuple(_planned(ahead, plan, settings.devices, _run_ms(tables)) for plan in ahead.plans)


def _run_ms(tables: Sequence[DeviceTimes]) -> list[float]:
    """Time of a run on each device without its operators [ms]."""
    return [max(table.offset_ms, 0.0) for table in tables]


@dataclass(frozen=True, slots=True, eq=False)
class _ThroughHome:
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


def _through_home(
    conditions: PartitionConditions, peers: tuple[int, ...], straight: frozenset[Way] = frozenset()
) -> _ThroughHome:
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
    return _ThroughHome(replace(conditions, latency_ms=latency_ms, bandwidth_mbps=speed), crossings)


def _changes(placement: Sequence[int]) -> Iterator[int]:
    """The cuts at which devices change."""
    return (cut for cut, (a, b) in enumerate(pairwise(placement), 1) if a != b)


def _planned(ahead: PlansAhead, plan: PartitionPlan, names: Sequence[str], run_ms: Sequence[float]) -> PlannedPlacement:
    """A plan in the coordinator's view: each stay on another device is an offloaded segment.
    Its tensors go up before it and come down after it.
    """
    bytes_at, placement = ahead.planner.problem.dataflow.crossing_bytes, plan.placement
    others_ms, links = float(plan.compute_ms[1:] @ ahead.conditions.slow_down[1:]), dict[str, LinkUse]()
    for stay in (one for one in plan.stays if one.device):
        name = names[stay.device]
        known = links.get(name)
        others_ms += run_ms[stay.device]
        links[name] = LinkUse(
            messages=1 + (known.messages if known else 0),
            up_bytes=int(bytes_at[stay.steps[0]]) + (known.up_bytes if known else 0),
            down_bytes=int(bytes_at[stay.steps[-1] + 1]) + (known.down_bytes if known else 0),
        )
    straight = dict[str, StraightUse]()
    for giver, taker in pairwise(plan.stays):
        if giver.device and taker.device:
            name, sent = way_name(names[giver.device], names[taker.device]), int(bytes_at[taker.steps[0]])
            before = straight.get(name)
            straight[name] = StraightUse(
                messages=1 + (before.messages if before else 0), bytes=sent + (before.bytes if before else 0)
            )
    by_number = (HOME, *names[1:])
    devices = tuple(by_number[placement[group[0]]] for group in ahead.groups)
    home_ms = float(plan.compute_ms[0])
    return PlannedPlacement(devices=devices, home_ms=home_ms, others_ms=others_ms, links=links, straight=straight)


def write_chain(
    net: SuperNet,
    config: Mapping[str, Choice],
    groups: Groups,
    folder: Path,
    options: ChainOptions = ONE_THREAD,
) -> None:
    """Write groups of operators as the segments of a chain, in `segments.json` and ONNX files, with the same checks as parts.

    UserError: the network passes values other than float32, or the segments' answer differs from the whole SubNet's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    exported = export_checked(net, config, groups, folder, options.statistics)
    if len(set(exported.outputs)) != 1:
        got = f"the network has {len(set(exported.outputs))} outputs"
        raise UserError("partition.plans", got, allowed="one", next_step="use partition.parts")
    pairs: Sequence[NcnnPair | None] = [None] * len(groups)
    if options.ncnn:
        pairs = write_ncnn(folder, exported, net.input_shape(config))
    segments = []
    for name, pair, session, macs in zip(exported.files, pairs, exported.sessions, exported.macs, strict=True):
        read, given = (tuple(map(tensor_of, each)) for each in (session.get_inputs(), session.get_outputs()))
        other = next((one for one in (*read, *given) if one.element_type != FLOAT), None)
        if other is not None:
            got = f"'{other.name}' is {other.element_type}"
            raise UserError("partition.plans", got, allowed=FLOAT, next_step="use partition.parts")
        inputs, outputs = (tuple(ChainTensor(name=one.name, shape=one.shape) for one in each) for each in (read, given))
        own = {"exit": given[0].name, "file": name, "ncnn": pair, "macs": macs}
        segments.append(ChainSegment.model_validate({**own, "inputs": inputs, "outputs": outputs}))
    manifest = ChainManifest(
        format="onnx",
        digest=net.space.digest(config),
        files=digests_of(folder, exported.files, pairs),
        input=segments[0].inputs[0],
        segments=tuple(segments),
        runtime="onnxruntime",
        settings={"intra_op_num_threads": options.threads, "session.intra_op.allow_spinning": "0"},
    )
    write_bytes(folder / SEGMENTS_FILE, manifest.to_json().encode())

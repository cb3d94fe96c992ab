"""Plans for one SubNet, from tables, links and limits; the tables are from the output folder of a finished run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import FLOAT_BYTES
from adaptive_runtime.offload.split.plans import coded_share
from profiling_agents.messages import MIB, ActivationCoding
from solvers.partition import (
    Dataflow,
    PartitionConditions,
    PartitionLimit,
    PartitionPlan,
    PartitionPlanner,
    PartitionProblem,
    SentValue,
    all_on_coordinator,
    all_remote,
    dads,
    fastest_pipeline,
    minimum_cut,
    neighbour_search,
    neurosurgeon,
    plan_of,
)
from solvers.tables import Infeasible
from tailor_ir import Choice, OperatorFeature, SubnetDataflow, SuperNet, find_flows
from tasks.base.artifacts import RESULT_FILE
from tasks.base.errors import UserError
from tasks.base.places import places
from tasks.base.schemas.placed import CutRow, OperatorRow, PartitionAnswer, PlanRow, SegmentRow, TransferRow
from tasks.measuring.lut import Lut
from tasks.measuring.profile import LUT_FOLDER
from tasks.placement.partition.settings import PartitionSettings
from tasks.prediction.latency import LATENCY_FILE, NEXT_STEP, Correction, LatencyPredictor, operator_ms
from tasks.prediction.layers import title

STAGES = "stages"
LATENCY_STAGE, PROFILE_STAGE = "latency", "profile"
SUPERNET_FOLDER = "supernet"
SUPERNET_STAGES = ("finetune", "compile")
"""Stages with a trained SuperNet, the preferred one first."""


class DeviceTimes(Protocol):
    """Times of the operators of SubNets on one device. offset_ms: time of a run without its operators [ms]."""

    @property
    def name(self) -> str: ...

    @property
    def offset_ms(self) -> float: ...

    def compute_ms(self, dataflow: SubnetDataflow) -> NDArray[np.float64]: ...

    def energy_mj(self, dataflow: SubnetDataflow) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Latencies and energies of operators on one device."""

    name: str
    lut: Lut
    correction: Correction

    @property
    def offset_ms(self) -> float:
        """Time of a run without its operators [ms]."""
        return self.correction.offset_ms

    def operator_ms(self, feature: OperatorFeature) -> float:
        """Latency of one operator [ms]; NaN if it has none on the device."""
        return operator_ms(self.lut, feature, self.correction)

    def compute_ms(self, dataflow: SubnetDataflow) -> NDArray[np.float64]:
        """Latency (n,) of each operator [ms]. UserError: an operator has no latency on the device."""
        found = np.asarray([self.operator_ms(one.feature) for one in dataflow.operators])
        unknown = np.flatnonzero(np.isnan(found))
        if len(unknown):
            feature = dataflow.operators[int(unknown[0])].feature
            got = f"{len(unknown)} operators have no latency, the first is {title(feature)} {feature.digest}"
            raise UserError(f"device '{self.name}'", got, next_step=NEXT_STEP)
        return found

    def energy_mj(self, dataflow: SubnetDataflow) -> NDArray[np.float64]:
        """Energy (n,) of each operator [mJ]. UserError: the energy of an operator is unknown."""
        known = self.lut.energies_mj()
        found = [known.get(one.feature.digest) for one in dataflow.operators]
        missing = found.count(None)
        if missing:
            got = f"the energy of {missing} operators is not known"
            raise UserError("partition.energy_mj", f"{got} on '{self.name}'", next_step="leave it out")
        return np.asarray(found, float)


def open_tables(output_dir: Path, devices: Sequence[str]) -> tuple[DeviceTable, ...]:
    """The tables of devices by their names in the run. UserError: a device has none."""
    stages, found = output_dir / STAGES, []
    known = sorted(path.name for path in (stages / PROFILE_STAGE).glob("*") if path.is_dir())
    for name in devices:
        profiled = _newest(stages / PROFILE_STAGE / name) if name in known else None
        if profiled is None:
            allowed = ", ".join(known) or "none, since nothing was measured"
            next_step = f"measure it: autotailor predict output_dir={output_dir} device=[{name}]"
            raise UserError(f"device '{name}'", f"has no table in '{output_dir}'", allowed=allowed, next_step=next_step)
        found.append(table_of(name, profiled, _newest(stages / LATENCY_STAGE / name)))
    return tuple(found)


def table_of(name: str, profile: Path, latency: Path | None) -> DeviceTable:
    """The table of a device from the folders of its stages; without a latency predictor, latencies are as measured."""
    correction = Correction() if latency is None else LatencyPredictor.load(latency / LATENCY_FILE).correction
    return DeviceTable(name, Lut.open(profile / LUT_FOLDER), correction)


def stages_of(devices: Sequence[str]) -> tuple[str, ...]:
    """The stages of an output folder that a partition over these devices reads."""
    return (*SUPERNET_STAGES, *(f"{stage}/{name}" for stage in (PROFILE_STAGE, LATENCY_STAGE) for name in devices))


def find_supernet(output_dir: Path) -> Path:
    """The folder of the latest SuperNet, preferably a trained one. UserError: there is none."""
    for stage in SUPERNET_STAGES:
        newest = _newest(output_dir / STAGES / stage)
        if newest is not None:
            return newest / SUPERNET_FOLDER
    next_step = "name one, supernet=FOLDER, or the folder of a run, output_dir=FOLDER"
    raise UserError(f"output folder '{output_dir}'", "has no SuperNet", next_step=next_step)


def _newest(folder: Path) -> Path | None:
    """The complete stage in a folder that was completed last; None if there is none."""
    made: Mapping[Path, float] = {path.parent: path.stat().st_mtime for path in folder.glob(f"*/{RESULT_FILE}")}
    return max(made, key=lambda path: (made[path], path.name), default=None)


OTHERS = {
    "all on the coordinator": all_on_coordinator,
    "all remote": all_remote,
    "best single cut (Neurosurgeon)": neurosurgeon,
    "minimum cut (DADS)": dads,
    "neighbour search (as CAS)": neighbour_search,
}


def plan_partition(
    net: SuperNet, config: Mapping[str, Choice], tables: Sequence[DeviceTimes], settings: PartitionSettings
) -> PartitionAnswer:
    """A plan for each bandwidth of the settings. tables: of `settings.devices`, in order.
    UserError: the network has several inputs, an operator has no latency on a device, or no plan keeps the limits.
    """
    if len(inputs := net.structure.graph.inputs) > 1:
        raise UserError("partition", f"the network takes {', '.join(inputs)}", allowed="networks of one input")
    config = net.space.canonical(config)
    dataflow = net.pre_partition().under(net.space.row(config))
    problem = problem_of(dataflow, tables, settings)
    planner = PartitionPlanner(problem)
    rows = []
    for bandwidth_mbps in settings.bandwidth_mbps:
        conditions = conditions_of(tables, settings, bandwidth_mbps)
        try:
            rows.append(_plan_row(planner, conditions, settings, bandwidth_mbps, tables[0].offset_ms))
        except Infeasible as error:
            next_step = "raise partition.memory_mib or partition.energy_mj, or lower partition.private"
            raise UserError(f"partition at {bandwidth_mbps:g} Mbit/s", str(error), next_step=next_step) from error
    return PartitionAnswer(
        network=net.space.digest(config),
        config=dict(config),
        devices=settings.devices,
        objective=settings.objective,
        returns=settings.returns,
        private=settings.private,
        operators=_operators(net, dataflow, problem.compute_ms, settings.devices),
        cuts=tuple(
            CutRow(
                cut=cut,
                values=tuple(value.name for value in dataflow.crossing(cut)),
                bytes=sum(value.bytes for value in dataflow.crossing(cut)),
            )
            for cut in range(dataflow.cuts)
        ),
        plans=tuple(rows),
    )


def solver_dataflow(dataflow: SubnetDataflow, coding: ActivationCoding = "fp32") -> Dataflow:
    """The dataflow in the solver's form; float32 values have their size in the coding."""
    values = (
        SentValue(
            writer=one.writer,
            readers=one.readers,
            bytes=one.bytes * (coded_share(coding) if one.bytes == prod(one.shape) * FLOAT_BYTES else 1.0),
        )
        for one in dataflow.values
    )
    return Dataflow(steps=len(dataflow.operators), values=tuple(values))


def problem_of(
    dataflow: SubnetDataflow, tables: Sequence[DeviceTimes], settings: PartitionSettings
) -> PartitionProblem:
    """The problem to solve. UserError: an operator has no latency on a device, or `private` exceeds the number of operators."""
    compute_ms = np.stack([table.compute_ms(dataflow) for table in tables], axis=1)
    if settings.private > len(dataflow.operators):
        allowed = f"0 to {len(dataflow.operators)}, the number of operators"
        raise UserError("partition.private", f"got {settings.private}", allowed=allowed)
    devices, limits = len(tables), []
    weights = [one.feature.parameters * FLOAT_BYTES for one in dataflow.operators]
    for name, most in settings.memory_mib.items():
        limits.append(PartitionLimit.of_memory(settings.devices.index(name), devices, weights, most * MIB))
    if settings.energy_mj is not None:
        per_step = np.zeros_like(compute_ms)
        per_step[:, 0] = tables[0].energy_mj(dataflow)
        none = np.zeros((devices, devices))
        limits.append(PartitionLimit(name="energy", per_step=per_step, per_byte=none, most=settings.energy_mj))
    return PartitionProblem(
        dataflow=solver_dataflow(dataflow, settings.coding or "fp32"),
        compute_ms=compute_ms,
        returns=settings.returns,
        private=settings.private,
        limits=tuple(limits),
    )


def conditions_of(
    tables: Sequence[DeviceTimes], settings: PartitionSettings, bandwidth_mbps: float
) -> PartitionConditions:
    """Conditions of a partition. A message to a device starts a run there.
    The run's own time (`DeviceTimes.offset_ms`) is added to the message's latency.
    """
    names = settings.devices
    latency_ms, speed = np.zeros((2, len(names), len(names)))
    for (source, a), (target, b) in permutations(enumerate(names), 2):
        link = settings.link(a, b, bandwidth_mbps)
        run_ms = max(tables[target].offset_ms, 0.0) if target else 0.0
        latency_ms[source, target], speed[source, target] = link.latency_ms + run_ms, link.bandwidth_mbps
    slow_down = np.asarray([settings.slow_down.get(name, 1.0) for name in names])
    return PartitionConditions(slow_down=slow_down, latency_ms=latency_ms, bandwidth_mbps=speed)


def _plan_row(
    planner: PartitionPlanner,
    conditions: PartitionConditions,
    settings: PartitionSettings,
    bandwidth_mbps: float,
    offset_ms: float,
) -> PlanRow:
    """The best plan for people, with other methods' latencies. offset_ms: of the coordinator."""
    problem, names = planner.problem, settings.devices
    pipeline: dict[str, Any] = {"period_ms": None, "bottleneck": None}
    if settings.objective == "latency":
        found = _fastest(planner, conditions)
    else:
        best = fastest_pipeline(problem, conditions)
        found = plan_of(problem, conditions, best.stages)
        kind, *ends = best.bottleneck.split()  # `device 1`, `link 0 to 1`
        bottleneck = " ".join([kind, *(names[int(word)] if word.isdigit() else word for word in ends)])
        pipeline = {"period_ms": best.period_ms, "bottleneck": bottleneck}
    times_ms, unit_ms = problem.compute_ms * conditions.slow_down, conditions.ms_per_byte
    others = {name: method(problem, conditions) for name, method in OTHERS.items()}
    kept = {name: plan.latency_ms(conditions) for name, plan in others.items() if plan.keeps(problem.limits)}
    return PlanRow(
        bandwidth_mbps=bandwidth_mbps,
        latency_ms=found.latency_ms(conditions) + offset_ms,
        stays=tuple(
            SegmentRow(
                device=names[segment.device],
                operators=segment.steps,
                time_ms=float(times_ms[list(segment.steps), segment.device].sum()),
            )
            for segment in found.segments
        ),
        transfers=tuple(
            TransferRow(
                source=names[a],
                target=names[b],
                bytes=float(found.bytes[a, b]),
                messages=int(found.messages[a, b]),
                time_ms=float(found.bytes[a, b] * unit_ms[a, b]),
            )
            for a, b in np.argwhere((found.bytes > 0) | (found.messages > 0)).tolist()
        ),
        others_ms={name: latency_ms + offset_ms for name, latency_ms in kept.items() if np.isfinite(latency_ms)},
        **pipeline,
    )


def _fastest(planner: PartitionPlanner, conditions: PartitionConditions) -> PartitionPlan:
    """The exact plan; with two devices possibly the minimum cut's plan, which may run branches together."""
    problem = planner.problem
    found = [planner.fastest(conditions)]
    if problem.devices == 2:
        ways = (minimum_cut(problem, conditions, 1 - problem.coordinator, one_way=one_way) for one_way in (False, True))
        found += [plan for plan in ways if plan.keeps(problem.limits)]
    return min(found, key=lambda plan: plan.latency_ms(conditions))


def _operators(
    net: SuperNet, dataflow: SubnetDataflow, compute_ms: NDArray[np.float64], names: Sequence[str]
) -> tuple[OperatorRow, ...]:
    place_of = {
        node.name: place.name
        for block, place in zip(net.structure.regions.blocks, places(net.structure.regions), strict=True)
        for node in block.nodes
    }
    flows = find_flows(dataflow)
    flow_of = {at: number for number, flow in enumerate(flows) for at in flow.operators}
    return tuple(
        OperatorRow(
            title=title(one.feature),
            place=next((place_of[name] for name in sorted(one.names) if name in place_of), "network"),
            macs=one.feature.macs,
            parameters=one.feature.parameters,
            compute_ms={name: float(ms) for name, ms in zip(names, compute_ms[at], strict=True)},
            flow=flow_of[at],
            beside=bool(flows[flow_of[at]].beside),
        )
        for at, one in enumerate(dataflow.operators)
    )

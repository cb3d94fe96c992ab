"""The stage of operating points: rows of SubNet, exit and format, the exact front over all columns, and the kept rows.

A row is kept if some state of the device prefers it. Each cost of a row is a sum over operators, by the tables of its
own format (`tasks.prediction`). The SubNets are the winners of the device that has the bundle, as predicted or as
measured. A device of the run is one level: the format of its files, and the predictors of SubNets' costs in this
format. Exits are measured on one device. In another format, a SubNet's exits are assumed to become slower and less
accurate like the whole SubNet.

Legend: n SubNets, V variables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from adaptive_runtime.base.numbers import clipped_share
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.model.variants import DEVIATION_OF_MEAN_ERROR, UNKNOWN_ERROR, load_classes, spread_of
from adaptive_runtime.policy import VariantLookUp, VariantTable
from adaptive_runtime.state.factors import SIGMA_OF_MEDIAN
from profiling_agents.messages import MIB
from solvers.tables import Codes, Values
from tailor_ir import SuperNet
from tailor_ir.memory.layouts import Rules
from tasks.base.errors import UserError
from tasks.base.schemas import predictions
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import LEVELS_FILE, Front, LevelRow, Levels, MissingLevel, Winner, against
from tasks.exits.policies import SubnetPolicy
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor
from tasks.prediction.resources import ENERGY_FILE, EnergyPredictor, MemoryPredictor

PERCENT = 100


class PredictedCosts(NamedTuple):
    """Predicted costs of SubNets (n,). known: all operators have a latency; only then the other values are valid."""

    known: NDArray[np.bool_]
    accuracy: Values
    latency_ms: Values
    energy_mj: Values
    weights_mib: Values
    activations_mib: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDevice:
    """Folders of the stages of one device. rules: memory model of its runtime, with the bytes of a weight."""

    name: str
    form: BundleFormat
    sensitivities: Path
    latency: Path
    resources: Path
    rules: Rules

    def costs(self, net: SuperNet, codes: Codes) -> PredictedCosts:
        """The predicted costs of SubNets (n, V)."""
        latency = LatencyPredictor.load(self.latency / LATENCY_FILE)
        known = latency.unknown.predict(codes) == 0 if latency.missing else np.ones(len(codes), bool)
        memory = MemoryPredictor.compile(net, self.rules)
        latency_ms = latency.sums.predict(codes) + latency.correction.offset_ms
        energy_mj = np.full(len(codes), np.nan)
        energy_mj[known] = EnergyPredictor.load(self.resources / ENERGY_FILE).predict(codes[known])
        return PredictedCosts(
            known=known,
            accuracy=AccuracyPredictor.load(self.sensitivities / predictions.SENSITIVITIES_FILE).predict(codes),
            latency_ms=latency_ms,
            energy_mj=energy_mj,
            weights_mib=memory.weights_bytes(codes) / MIB,
            activations_mib=memory.peak_bytes(codes) / MIB,
        )

    @property
    def energy_from(self) -> str:
        """The source of predicted energies."""
        return predictions.Resources.read(self.resources / predictions.RESOURCES_FILE).energy_from

    @property
    def accuracy_error(self) -> float:
        """Standard deviation of predicted accuracies, from holdout SubNets."""
        stated = predictions.AccuracyValidation.read(self.sensitivities / predictions.ACCURACY_VALIDATION_FILE)
        return DEVIATION_OF_MEAN_ERROR * stated.mean_error_points / PERCENT

    @property
    def latency_error(self) -> float:
        """Relative standard deviation of predicted latencies, from holdout SubNets."""
        return latency_error_of(self.latency)


def latency_error_of(latency: Path) -> float:
    """Relative standard deviation of the latencies predicted by the "latency" stage in this folder."""
    median = predictions.LatencyValidation.read(
        latency / predictions.LATENCY_VALIDATION_FILE
    ).held_out.median_relative_error
    return UNKNOWN_ERROR if median is None else SIGMA_OF_MEDIAN * median


def with_exits(whole: LevelRow, own: LevelRow, policy: SubnetPolicy | None) -> Iterator[LevelRow]:
    """The rows of a whole SubNet, of each exit before its last, and of early answers by thresholds.

    own: the row of the whole SubNet in the format in which its exits were measured. policy: None if the SubNet has no exits.
    """
    yield whole
    if policy is None or whole.format == "onnx_int8":  # int8 files have no segments
        return
    full = policy.exits[-1]
    slower, lost = whole.latency_ms / own.latency_ms, own.accuracy - whole.accuracy
    error = whole.latency_error if whole.device == own.device else max(whole.latency_error, UNKNOWN_ERROR)

    def row(accuracy: float, latency_ms: float, **changed: object) -> LevelRow:
        energy_mj = None if whole.energy_mj is None else whole.energy_mj * latency_ms * slower / whole.latency_ms
        figures = {"accuracy": clipped_share(accuracy - lost), "latency_ms": latency_ms * slower}
        return whole.model_copy(update={**figures, "energy_mj": energy_mj, "latency_error": error, **changed})

    for one in policy.exits[:-1]:
        split = next(iter(one.accuracy))
        accuracy = own.accuracy + one.accuracy[split] - full.accuracy[split]
        yield row(accuracy, one.latency_ms, exit=one.exit)
    tested = policy.tested
    if policy.thresholds is not None and tested is not None:
        accuracy = own.accuracy + tested.accuracy - tested.full_accuracy
        spread = spread_of(tested.expected_ms, tested.p99_ms)
        yield row(accuracy, tested.expected_ms, early=True, latency_error=max(spread, error))


NO_LATENCY = "an operator of it has no latency in this format"


class RowOverDevices(Protocol):
    """A SubNet over devices."""

    @property
    def row(self) -> LevelRow: ...


OverDevices = TypeVar("OverDevices", bound=RowOverDevices)


class FurtherDevices(Protocol[OverDevices]):
    """Further devices over which the first device's SubNets may run (`tasks.placement.bundled`)."""

    def level(self, net: SuperNet, whole: LevelRow) -> OverDevices | None:
        """The row of a whole SubNet over devices; None if it sends nothing. UserError: there is no plan."""
        ...

    def preferred(self, rows: Sequence[LevelRow], placed: Sequence[OverDevices]) -> NDArray[np.bool_]:
        """Whether each placed row is preferred to all others in some state. rows: on the first device."""
        ...


def run(
    supernet: Path,
    front: Front,
    devices: Sequence[LevelDevice],
    policies: Sequence[SubnetPolicy],
    out: Path,
    others: FurtherDevices[OverDevices] | None = None,
) -> StageResult:
    """Write and return `levels.json`. devices: the first has the bundle; `front` and `policies` belong to it.

    others: further devices over which the first device's SubNets may run.
    """
    net = tailor_ir.load(supernet)
    winners = list({winner.digest: winner for winner in front.winners}.values())
    codes = np.asarray(net.space.encode([winner.config for winner in winners]))
    costs = {device.name: device.costs(net, codes) for device in devices}
    sources = {device.energy_from for device in devices}
    energy_from = next(iter(sources)) if len(sources) == 1 else None
    exits = {policy.digest: policy for policy in policies}
    rows: list[LevelRow] = []
    placed: list[OverDevices] = []
    left_out: list[MissingLevel] = []
    for at, winner in enumerate(winners):
        known = [device for device in devices if costs[device.name].known[at]]
        whole = [_whole(device, winner, at, costs, devices[0], has_energy=energy_from is not None) for device in known]
        own = whole[0]  # the first device's own search has found the SubNet, so its latency is known there
        for row in whole:
            rows += with_exits(row, own, exits.get(winner.digest))
        if others is not None:
            try:
                over = others.level(net, own)
            except UserError as error:
                left_out.append(MissingLevel(digest=own.digest, format=own.format, reason=f"over devices: {error}"))
            else:
                placed += [] if over is None else [over]
        missing = [device.form for device in devices if device not in known]
        left_out += [MissingLevel(digest=winner.digest, format=form, reason=NO_LATENCY) for form in missing]
    every, is_kept = [*rows, *(one.row for one in placed)], kept(rows).tolist()
    if others is not None:
        is_kept += others.preferred(rows, placed).tolist()
    judged = [
        row.model_copy(update={"on_front": bool(is_best), "kept": preferred_by_some})
        for row, is_best, preferred_by_some in zip(every, on_front(every), is_kept, strict=True)
    ]
    found = Levels(device=devices[0].name, energy_from=energy_from, rows=tuple(judged), left_out=tuple(left_out))
    return found.write(out / LEVELS_FILE)


def _whole(
    device: LevelDevice,
    winner: Winner,
    at: int,
    costs: Mapping[str, PredictedCosts],
    first: LevelDevice,
    *,
    has_energy: bool,
) -> LevelRow:
    """The row of a whole SubNet.

    Its accuracy is the winner's accuracy plus the predicted change by the format. Its latency on the first device is the
    measured latency if it was measured, else predicted.
    """
    found, is_first = costs[device.name], device is first
    measured_ms = winner.measured_ms if is_first else None
    accuracy = winner.accuracy + float(found.accuracy[at] - costs[first.name].accuracy[at])
    is_evaluated = is_first and winner.measured_accuracy is not None
    return LevelRow(
        digest=winner.digest,
        config=winner.config,
        device=device.name,
        format=device.form,
        accuracy=clipped_share(accuracy),
        accuracy_error=0.0 if is_evaluated else device.accuracy_error,
        latency_ms=float(found.latency_ms[at]) if measured_ms is None else measured_ms,
        latency_error=device.latency_error if measured_ms is None else 0.0,
        energy_mj=float(found.energy_mj[at]) if has_energy else None,
        weights_mib=float(found.weights_mib[at]),
        activations_mib=float(found.activations_mib[at]),
    )


def on_front(rows: Sequence[LevelRow]) -> NDArray[np.bool_]:
    """Whether no other row is at least as good in all columns and better in one, (R,); equal rows are all on the front."""
    columns_RD = np.array([row.columns() for row in rows])
    found = np.ones(len(rows), bool)
    for at, own_D in enumerate(columns_RD):
        no_worse_R, better_R = against(columns_RD, own_D)
        found[at] = not (no_worse_R & better_R).any()
    return found


def kept(rows: Sequence[LevelRow]) -> NDArray[np.bool_]:
    """Whether the run time chooses a row in some state of the device, (R,); see `VariantLookUp.kept_rows`."""
    latency_ms = tuple(row.latency_ms for row in rows)
    energy_mj = tuple(row.energy_mj for row in rows if row.energy_mj is not None)
    table = VariantTable(
        names=tuple(row.name for row in rows),
        accuracy=tuple(row.accuracy for row in rows),
        latency_ms=latency_ms,
        latency_error=tuple(row.latency_error for row in rows),
        energy_mj=energy_mj if len(energy_mj) == len(rows) else None,
        memory_mib=tuple(row.memory_mib for row in rows),
        load_class=load_classes(latency_ms),
    )
    found = np.zeros(len(rows), bool)
    found[VariantLookUp(table).kept_rows] = True
    return found

"""The stage: rows of all combinations, the exact front over all columns, and the rows that some state of the device prefers.

Each cost of a row is a sum over operators, by the tables of its own format (`tasks.prediction`). The SubNets are the winners of
the device that has the bundle, as predicted or as measured.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import tailor_ir
from adaptive_runtime.base.shares import clipped_share
from adaptive_runtime.model.adapting.variants import load_classes
from adaptive_runtime.policy import VariantLookUp, VariantTable
from tailor_ir import SuperNet
from tasks.base.errors import UserError
from tasks.base.schemas.front import Front, Winner
from tasks.base.schemas.operating_points import LEVELS_FILE, LevelRow, Levels, MissingLevel, against
from tasks.base.schemas.stored import StageResult
from tasks.exits.policies import SubnetPolicy
from tasks.export.operating_points.devices import LevelDevice, PredictedCosts
from tasks.export.operating_points.exits import with_exits

NO_LATENCY = "an operator of it has no latency in this format"


class RowOverDevices(Protocol):
    """A SubNet over devices."""

    @property
    def row(self) -> LevelRow: ...


OverDevices = TypeVar("OverDevices", bound=RowOverDevices)


class FurtherDevices(Protocol[OverDevices]):
    """Further devices over which the first device's SubNets may run (`tasks.placement.operating_points`)."""

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

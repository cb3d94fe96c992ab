"""The tables of the devices of `partition.devices`, for the bundle of the first one.

Inputs of the stages "front" and "export" for SubNets of a bundle that run over several devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.pipeline.stages.spec import Context
from importing import later_names
from tasks.base.schemas.placed import LUT_FOLDER
from tasks.base.schemas.predictions import LATENCY_FILE, LATENCY_VALIDATION_FILE
from tasks.export.operating_points import LEVELS_FILE, Levels

if TYPE_CHECKING:
    from tasks.export.operating_points import latency_error_of
    from tasks.placement.bundled import BundlePlacements, OtherDevices
    from tasks.placement.partition.planning import DeviceTable, table_of
else:
    globals().update(later_names(__file__))


NCNN = "ncnn"


def is_placed(at: Context) -> bool:
    """Whether the bundle of a stage's device has SubNets that offload to other devices."""
    return at.config.export.placed and at.device == at.config.partition.devices[0]


def placed_settings(at: Context) -> dict[str, Any]:
    """The settings that plans depend on besides tables; empty if there are no plans."""
    return {"partition": at.config.partition.model_dump(mode="json")} if is_placed(at) else {}


def placed_files(at: Context) -> tuple[Path, ...]:
    """The files of earlier stages from which plans are made."""
    if not is_placed(at):
        return ()
    return tuple(
        at.file(stage, file, name)
        for name in at.config.partition.devices
        for stage, file in (("profile", LUT_FOLDER), ("latency", LATENCY_FILE), ("latency", LATENCY_VALIDATION_FILE))
    )


def other_devices(at: Context) -> OtherDevices | None:
    """The devices that may take part; None if the bundle does not offload."""
    if not is_placed(at):
        return None
    partition = at.config.partition
    folders = (at.output("latency", name).folder for name in partition.devices)
    return OtherDevices(_tables(at), partition, max(map(latency_error_of, folders)))


def placements(at: Context) -> BundlePlacements | None:
    """The offloaded SubNets in the device's bundle, if some state prefers them; None if the bundle does not offload."""
    if not is_placed(at):
        return None
    tables, kept = _tables(at), Levels.read(at.file("front", LEVELS_FILE)).placed
    return BundlePlacements(
        tables,
        at.config.partition,
        {digest: row.latency_error for digest, row in kept.items()},
        threads=tables[0].lut.device.threads,
        ncnn=any(table.lut.device.backend == NCNN for table in tables),
    )


def _tables(at: Context) -> tuple[DeviceTable, ...]:
    return tuple(
        table_of(name, at.output("profile", name).folder, at.output("latency", name).folder)
        for name in at.config.partition.devices
    )

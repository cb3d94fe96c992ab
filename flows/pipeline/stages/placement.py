"""The stages of the joint search for SubNets and the devices of their segments: accuracy losses of codings, and the winners.

The tables of the devices of `partition.devices`, for the bundle of the first one.

Inputs of the stages "front" and "export" for SubNets of a bundle that run over several devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.spec import ALONE, Context, Outputs, StageSpec
from importing import later_names
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.placed import CODINGS_FILE, JOINT_FILE, LUT_FOLDER, JointFront
from tasks.base.schemas.predictions import LATENCY_FILE, LATENCY_VALIDATION_FILE
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.settings import EvaluationSettings
from tasks.export.operating_points import LEVELS_FILE, Levels

if TYPE_CHECKING:
    from tasks.export.operating_points import latency_error_of
    from tasks.measuring.lut import Lut
    from tasks.placement import codings, joint
    from tasks.placement.bundled import BundlePlacements, OtherDevices
    from tasks.placement.partition.planning import DeviceTable, table_of
    from tasks.prediction.accuracy import AccuracyPredictor
    from tasks.prediction.latency import LatencyPredictor
else:
    globals().update(later_names(__file__))


NAME = "joint"
SETTINGS = {"tolerance", "budgets_ms", "budget_count", "limits", "seed", "placement", "partition"}
"""The settings of a search that count for this stage."""
OF_LOSSES = {"codings", "coding_images"}


def _codes(config: FlowConfig, until: str) -> bool:
    """Whether codings other than fp32 may be chosen."""
    return bool(config.search.placement) and len(config.search.partition.ascending) > 1


def _codings(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.config
    return codings.run(config.search.partition, config.predict, config.data, at.trained, out, progress)


CODINGS = StageSpec(
    name="codings",
    body=_codings,
    needs=("finetune",),
    modules=("tasks.placement.codings",),
    settings=lambda at: {
        **key_settings(at.config.predict, EvaluationSettings),
        **at.config.search.partition.model_dump(mode="json", include=OF_LOSSES),
    },
    inputs=lambda at: (at.data, at.trained),
    artifacts=lambda at: (CODINGS_FILE,),
    wanted=_codes,
)
"""The accuracy loss of each coding of sent values."""


def _table(at: Context, device: str) -> DeviceTable:
    lut = Lut.open(at.file("profile", LUT_FOLDER, device))
    return DeviceTable(device, lut, LatencyPredictor.load(at.file("latency", LATENCY_FILE, device)).correction)


def _joint(at: Context, out: Path, progress: Progress) -> StageResult:
    settings = at.config.search
    tables = [_table(at, device) for device in settings.placement]
    accuracy = AccuracyPredictor.load(at.sensitivities(settings.placement[0]))
    lost = at.output("codings", ALONE).folder if at.has("codings") else None
    told = at.uncertainty(settings.placement[0])
    return joint.run(at.trained, tables, accuracy, settings, lost, out, progress, told)


def _inputs(at: Context) -> tuple[Any, ...]:
    devices = at.config.search.placement
    return (
        at.trained,
        at.sensitivities(devices[0]),
        at.uncertainty(devices[0]).to_json(),
        *(at.file("profile", LUT_FOLDER, device) for device in devices),
        *(at.file("latency", LATENCY_FILE, device) for device in devices),
        *([at.file("codings", CODINGS_FILE, ALONE)] if at.has("codings") else []),
    )


JOINT = StageSpec(
    name=NAME,
    body=_joint,
    needs=("finetune", "profile", "sensitivities", "latency"),
    reads=("int8", "codings"),
    modules=("tasks.placement.joint",),
    settings=lambda at: at.config.search.model_dump(mode="json", include=SETTINGS),
    inputs=_inputs,
    artifacts=lambda at: (JOINT_FILE,),
    facts=of(JointFront, pages.joint),
    wanted=lambda config, until: bool(config.search.placement),
)
"""The best SubNet over several devices together for every latency budget, with its plan."""


def found_jointly(outputs: Outputs) -> dict[str, StageResult]:
    """`joint`: the winners over several devices together; empty if the run does not search them."""
    return {NAME: outputs[NAME][ALONE].result} if NAME in outputs else {}


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
        at.file(joint, file, name)
        for name in at.config.partition.devices
        for joint, file in (("profile", LUT_FOLDER), ("latency", LATENCY_FILE), ("latency", LATENCY_VALIDATION_FILE))
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

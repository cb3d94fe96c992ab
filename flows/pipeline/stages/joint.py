"""The stages of the joint search for SubNets and the devices of their segments: accuracy losses of codings, and the winners."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig
from flows.pipeline.pages import facts
from flows.pipeline.results import of
from flows.pipeline.stages.spec import ALONE, Context, Outputs, StageSpec
from importing.lazy import later_names
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.latency import LATENCY_FILE
from tasks.base.schemas.operators import LUT_FOLDER
from tasks.base.schemas.placed import CODINGS_FILE, JOINT_FILE, JointFront
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.settings import EvaluationSettings

if TYPE_CHECKING:
    from tasks.measuring.lut import Lut
    from tasks.placement.joint import losses, stage
    from tasks.placement.partition.tables import DeviceTable
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
    return losses.run(config.search.partition, config.predict, config.data, at.trained, out, progress)


CODINGS = StageSpec(
    name="codings",
    body=_codings,
    needs=("finetune",),
    modules=("tasks.placement.joint.losses",),
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
    return stage.run(at.trained, tables, accuracy, settings, lost, out, progress, told)


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
    modules=("tasks.placement.joint.stage",),
    settings=lambda at: at.config.search.model_dump(mode="json", include=SETTINGS),
    inputs=_inputs,
    artifacts=lambda at: (JOINT_FILE,),
    facts=of(JointFront, facts.joint),
    wanted=lambda config, until: bool(config.search.placement),
)
"""The best SubNet over several devices together for every latency budget, with its plan."""


def found_jointly(outputs: Outputs) -> dict[str, StageResult]:
    """`joint`: the winners over several devices together; empty if the run does not search them."""
    return {NAME: outputs[NAME][ALONE].result} if NAME in outputs else {}

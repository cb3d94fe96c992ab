"""Exit policies: thresholds for SubNets with exits, and the table of the cost of leaving at each exit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tailor_ir
from flows.config import AdaptConfig, FlowConfig
from flows.pipeline.pages import policies as facts
from flows.pipeline.results import of
from flows.pipeline.stages.spec import DEVICES, Context, Outputs, StageSpec
from flows.pipeline.stages.winners import chosen, target_of
from flows.storage.layout import EXPORTS_FOLDER
from importing.lazy import later_names
from tasks.base.artifacts import key_settings, write_bytes
from tasks.base.progress import Progress
from tasks.base.schemas.front import FRONT_FILE, Front
from tasks.base.schemas.latency import LATENCY_FILE
from tasks.base.schemas.operators import LUT_FOLDER, ChosenImplementations
from tasks.base.schemas.resources import ENERGY_FILE
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.settings import EvaluationSettings
from tasks.exits.policies import POLICIES_FILE, TABLE_FILE, THRESHOLDS_FILE, Policies
from tasks.measuring.settings import RepeatedTimingSettings

if TYPE_CHECKING:
    from tasks.exits import stage
    from tasks.exits.bench import PolicyDevice
    from tasks.prediction.accuracy import AccuracyPredictor
    from tasks.prediction.energy import EnergyPredictor
    from tasks.prediction.latency import LatencyPredictor
else:
    globals().update(later_names(__file__))

POLICY_FOLDER = "policy"
"""Folder for thresholds and the table of exits, inside the folder of a device's exported files."""


def _has_exits(config: FlowConfig) -> bool:
    spec = tailor_ir.load_spec(config.supernet) if isinstance(config, AdaptConfig) else config.space
    return tailor_ir.asks_for_exits(spec)


def _policy(at: Context, out: Path, progress: Progress) -> StageResult:
    config, profile = at.config, at.config.device[at.device]
    device = PolicyDevice(
        target=target_of(at),
        accuracy=AccuracyPredictor.load(at.sensitivities(at.device)),
        latency=LatencyPredictor.load(at.file("latency", LATENCY_FILE)),
        energy=EnergyPredictor.load(at.file("resources", ENERGY_FILE)),
        lut=at.file("profile", LUT_FOLDER),
        front=Front.read(chosen(at)[at.device].folder / FRONT_FILE),
        batch=at.batch,
        precision=profile.precision,
        implementations=ChosenImplementations.read(at.implementations()),
    )
    with at.run.devices.exclusive(at.device, at.engine, alone=True) as client:
        given = (config.policy, config.predict, config.predict, config.data, at.trained, device, client)
        return stage.run(*given, out, progress, at.store, at.workers)


def _settings(at: Context) -> dict[str, Any]:
    return {
        **key_settings(at.config.policy),
        "timing": key_settings(at.config.predict, RepeatedTimingSettings),
        "evaluation": key_settings(at.config.predict, EvaluationSettings),
    }


def _inputs(at: Context) -> tuple[Any, ...]:
    return (
        at.fingerprint,
        at.device,
        at.data,
        at.trained,
        chosen(at)[at.device].folder / FRONT_FILE,
        at.sensitivities(at.device),
        at.file("latency", LATENCY_FILE),
        at.file("resources", ENERGY_FILE),
        at.file("profile", LUT_FOLDER),
        at.implementations(),
    )


POLICY = StageSpec(
    name="policy",
    body=_policy,
    scope=DEVICES,
    needs=("finetune", "profile", "sensitivities", "latency", "resources", "search"),
    reads=("engine", "int8", "refine"),
    modules=("tasks.exits.stage",),
    settings=_settings,
    inputs=_inputs,
    artifacts=lambda at: (POLICIES_FILE,),
    facts=of(Policies, facts.policies),
    details=of(Policies, facts.without_thresholds),
    wanted=lambda config, until: config.policy.subnets > 0 and _has_exits(config),
    agent=True,
)
"""Thresholds for SubNets with exits on one device, tested there."""


def readable_policies(config: FlowConfig, outputs: Outputs) -> None:
    """Write each device's thresholds and tables of exits beside its exported files, and remove files of earlier runs."""
    for name, output in outputs.get("policy", {}).items():
        folder = config.folder / EXPORTS_FOLDER / name / POLICY_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        files = [file for pattern in (TABLE_FILE, THRESHOLDS_FILE.format("*")) for file in output.folder.glob(pattern)]
        for old in (*folder.glob(TABLE_FILE), *folder.glob(THRESHOLDS_FILE.format("*"))):
            old.unlink()
        for file in files:
            write_bytes(folder / file.name, file.read_bytes())

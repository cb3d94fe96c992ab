"""The stages of levels and exit policies: all levels of one device as one table, and thresholds for early exits.

The stage "front" has the table. Levels are SubNets, exits, formats (if a device stands for several devices) and other
devices. The table of an exit policy has the cost of leaving at each exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tailor_ir
from flows.config import AdaptConfig, FlowConfig, leveled
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.placement import other_devices, placed_files, placed_settings
from flows.pipeline.stages.spec import DEVICES, Context, Outputs, Scope, StageSpec
from flows.pipeline.stages.winners import chosen, target_of
from flows.storage import EXPORTS_FOLDER
from importing import later_names
from tasks.base.artifacts import key_settings, write_bytes
from tasks.base.progress import Progress
from tasks.base.schemas.placed import LUT_FOLDER, ChosenImplementations
from tasks.base.schemas.predictions import (
    ACCURACY_VALIDATION_FILE,
    ENERGY_FILE,
    LATENCY_FILE,
    LATENCY_VALIDATION_FILE,
    RESOURCES_FILE,
)
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import FRONT_FILE, Front
from tasks.evaluation.settings import EvaluationSettings
from tasks.exits.policies import POLICIES_FILE, TABLE_FILE, THRESHOLDS_FILE, Policies
from tasks.export.operating_points import LEVELS_FILE, Levels
from tasks.measuring.settings import RepeatedTimingSettings

if TYPE_CHECKING:
    from tasks.exits import stage
    from tasks.exits.stage import PolicyDevice, PolicyRequest
    from tasks.export.operating_points import LevelDevice, run
    from tasks.prediction.accuracy import AccuracyPredictor
    from tasks.prediction.latency import LatencyPredictor
    from tasks.prediction.resources import EnergyPredictor
else:
    globals().update(later_names(__file__))


LEVELED = Scope(labels=lambda config: leveled(config.export, config.partition))


def _names(at: Context) -> tuple[str, ...]:
    """The device that gets the bundle, then the others."""
    return at.device, *at.config.export.together.get(at.device, ())


def _devices(at: Context) -> Sequence[LevelDevice]:
    return [_device(at, name) for name in _names(at)]


def _device(at: Context, name: str) -> LevelDevice:
    form = at.config.device[name].bundle_format
    assert form is not None, "the config has checked it"
    return LevelDevice(
        name=name,
        form=form,
        sensitivities=at.sensitivities(name).parent,
        latency=at.output("latency", name).folder,
        resources=at.output("resources", name).folder,
        rules=at.config.limited_memory_of(name),
    )


def _front(at: Context, out: Path, progress: Progress) -> StageResult:
    front = Front.read(chosen(at)[at.device].folder / FRONT_FILE)
    policies = Policies.read(at.file("policy", POLICIES_FILE)).subnets if at.has("policy") else ()
    return run(at.trained, front, _devices(at), policies, out, other_devices(at))


def _settings(at: Context) -> dict[str, Any]:
    config = at.config
    rows = ((name, config.device[name].bundle_format, config.limited_memory_of(name)) for name in _names(at))
    return {"levels": [[name, form, asdict(rules)] for name, form, rules in rows], **placed_settings(at)}


def _inputs(at: Context) -> tuple[Any, ...]:
    files = [
        file
        for one in _devices(at)
        for file in (
            at.sensitivities(one.name),
            one.sensitivities / ACCURACY_VALIDATION_FILE,
            one.latency / LATENCY_FILE,
            one.latency / LATENCY_VALIDATION_FILE,
            one.resources / ENERGY_FILE,
            one.resources / RESOURCES_FILE,
        )
    ]
    policies = (at.file("policy", POLICIES_FILE),) if at.has("policy") else ()
    return at.trained, chosen(at)[at.device].folder / FRONT_FILE, *files, *policies, *placed_files(at)


FRONT = StageSpec(
    name="front",
    body=_front,
    scope=LEVELED,
    needs=("finetune", "profile", "sensitivities", "latency", "resources", "search"),
    reads=("int8", "refine", "policy"),
    modules=("tasks.export.operating_points", "tasks.placement.bundled"),
    settings=_settings,
    inputs=_inputs,
    artifacts=lambda at: (LEVELS_FILE,),
    facts=of(Levels, pages.levels),
    details=of(Levels, pages.left_out),
    wanted=lambda config, until: bool(leveled(config.export, config.partition)),
)
"""Each combination of SubNet, exit, format and other devices on one device; those preferred in some state are kept."""


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
        request = PolicyRequest(
            settings=config.policy,
            timing=config.predict,
            evaluation=config.predict,
            data=config.data,
            supernet=at.trained,
            device=device,
            workers=at.workers,
        )
        return stage.run(request, client, at.workspace(out, progress))


def _settings_of_policies(at: Context) -> dict[str, Any]:
    return {
        **key_settings(at.config.policy),
        "timing": key_settings(at.config.predict, RepeatedTimingSettings),
        "evaluation": key_settings(at.config.predict, EvaluationSettings),
    }


def _inputs_of_policies(at: Context) -> tuple[Any, ...]:
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
    settings=_settings_of_policies,
    inputs=_inputs_of_policies,
    artifacts=lambda at: (POLICIES_FILE,),
    facts=of(Policies, pages.policies),
    details=of(Policies, pages.without_thresholds),
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

"""The stages "front", a table of all levels of one device, and "exits", its thresholds for early exits.

Levels are SubNets, exits, formats (if a device stands for several devices) and other devices.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tailor_ir
from adaptive_runtime.bundle.bundles import BundleFormat
from flows.config import FlowConfig, RetargetConfig, leveled
from flows.pipeline import pages
from flows.pipeline.results import of
from flows.pipeline.stages.spec import DEVICES, Context, Outputs, Scope, StageSpec
from flows.pipeline.stages.winners import front_of, other_devices, placed_files, placed_settings, policies_of, target_of
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
from tasks.base.schemas.winners import Front
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


def _names(at: Context) -> tuple[str, ...]:
    """The device that gets the bundle, then the others."""
    return at.device, *at.config.export.shared_bundle.get(at.device, ())


def _devices(at: Context) -> list[LevelDevice]:
    return [
        LevelDevice(
            name=name,
            form=_form(at, name),
            sensitivities=at.sensitivities(name).parent,
            latency=at.output("latency", name).folder,
            resources=at.output("resources", name).folder,
            rules=at.config.limited_memory_of(name),
        )
        for name in _names(at)
    ]


def _form(at: Context, device: str) -> BundleFormat:
    form = at.config.device[device].bundle_format
    assert form is not None, "the config has checked it"
    return form


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
    policies = (at.file("exits", POLICIES_FILE),) if at.has("exits") else ()
    return at.trained, front_of(at), *files, *policies, *placed_files(at)


FRONT = StageSpec(
    name="front",
    body=lambda at, out, progress: run(
        at.trained, Front.read(front_of(at)), _devices(at), policies_of(at), out, other_devices(at)
    ),
    scope=Scope(labels=lambda config: leveled(config.export, config.partition)),
    needs=("finetune", "profile", "sensitivities", "latency", "resources", "search"),
    reads=("int8", "refine", "exits"),
    modules=("tasks.export.operating_points", "tasks.placement.bundled"),
    settings=lambda at: {
        "levels": [[name, _form(at, name), asdict(at.config.limited_memory_of(name))] for name in _names(at)],
        **placed_settings(at),
    },
    inputs=_inputs,
    artifacts=lambda at: (LEVELS_FILE,),
    facts=of(Levels, pages.levels),
    details=of(Levels, pages.left_out),
    wanted=lambda config, until: bool(leveled(config.export, config.partition)),
)
"""Each combination of SubNet, exit, format and other devices on one device; those preferred in some state are kept."""


EXITS_FOLDER = "exits"
"""Folder for thresholds and the table of exits, inside the folder of a device's exported files."""


def _exits(at: Context, out: Path, progress: Progress) -> StageResult:
    config, profile = at.config, at.config.device[at.device]
    device = PolicyDevice(
        target=target_of(at),
        accuracy=AccuracyPredictor.load(at.sensitivities(at.device)),
        latency=LatencyPredictor.load(at.file("latency", LATENCY_FILE)),
        energy=EnergyPredictor.load(at.file("resources", ENERGY_FILE)),
        lut=at.file("profile", LUT_FOLDER),
        front=Front.read(front_of(at)),
        batch=at.batch,
        precision=profile.precision,
        implementations=ChosenImplementations.read(at.implementations()),
    )
    with at.run.devices.exclusive(at.device, at.engine, alone=True) as client:
        request = PolicyRequest(
            settings=config.exits,
            timing=config.predict,
            evaluation=config.predict,
            data=config.data,
            supernet=at.trained,
            device=device,
            workers=at.run.workers,
        )
        return stage.run(request, client, at.workspace(out, progress))


EXITS = StageSpec(
    name="exits",
    body=_exits,
    scope=DEVICES,
    needs=("finetune", "profile", "sensitivities", "latency", "resources", "search"),
    reads=("runtime_options", "int8", "refine"),
    modules=("tasks.exits.stage",),
    settings=lambda at: {
        **key_settings(at.config.exits),
        "timing": key_settings(at.config.predict, RepeatedTimingSettings),
        "evaluation": key_settings(at.config.predict, EvaluationSettings),
    },
    inputs=lambda at: (
        at.fingerprint,
        at.device,
        at.data,
        at.trained,
        front_of(at),
        at.sensitivities(at.device),
        at.file("latency", LATENCY_FILE),
        at.file("resources", ENERGY_FILE),
        at.file("profile", LUT_FOLDER),
        at.implementations(),
    ),
    artifacts=lambda at: (POLICIES_FILE,),
    facts=of(Policies, pages.policies),
    details=of(Policies, pages.without_thresholds),
    wanted=lambda config, until: (
        config.exits.subnets > 0
        and tailor_ir.asks_for_exits(
            tailor_ir.load_spec(config.supernet) if isinstance(config, RetargetConfig) else config.space
        )
    ),
    agent=True,
)
"""Thresholds for SubNets with exits on one device, tested there."""


def readable_policies(config: FlowConfig, outputs: Outputs) -> None:
    """Write each device's thresholds and tables of exits beside its exported files, and remove files of earlier runs."""
    for name, output in outputs.get("exits", {}).items():
        folder = config.folder / EXPORTS_FOLDER / name / EXITS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        patterns = (TABLE_FILE, THRESHOLDS_FILE.format("*"))
        for old in [file for pattern in patterns for file in folder.glob(pattern)]:
            old.unlink()
        for file in [file for pattern in patterns for file in output.folder.glob(pattern)]:
            write_bytes(folder / file.name, file.read_bytes())

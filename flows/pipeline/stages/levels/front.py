"""The levels of a device in one table: SubNets, exits, formats (if it stands for several devices) and other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import leveled
from flows.pipeline.pages import levels as facts
from flows.pipeline.results import of
from flows.pipeline.stages.placed import other_devices, placed_files, placed_settings
from flows.pipeline.stages.spec import Context, Scope, StageSpec
from flows.pipeline.stages.winners import chosen
from importing.lazy import later_names
from tasks.base.progress import Progress
from tasks.base.schemas.accuracy import VALIDATION_FILE as ACCURACY_VALIDATION_FILE
from tasks.base.schemas.front import FRONT_FILE, Front
from tasks.base.schemas.latency import LATENCY_FILE
from tasks.base.schemas.latency import VALIDATION_FILE as LATENCY_VALIDATION_FILE
from tasks.base.schemas.resources import ENERGY_FILE, RESOURCES_FILE
from tasks.base.schemas.stored import StageResult
from tasks.exits.policies import POLICIES_FILE, Policies
from tasks.export.operating_points import LEVELS_FILE, Levels

if TYPE_CHECKING:
    from tasks.export.operating_points import LevelDevice, run
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
    modules=("tasks.export.operating_points", "tasks.placement.operating_points"),
    settings=_settings,
    inputs=_inputs,
    artifacts=lambda at: (LEVELS_FILE,),
    facts=of(Levels, facts.levels),
    details=of(Levels, facts.left_out),
    wanted=lambda config, until: bool(leveled(config.export, config.partition)),
)
"""Each combination of SubNet, exit, format and other devices on one device; those preferred in some state are kept."""

"""Measurements of a SuperNet and of devices, and the predictors made from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig
from flows.pipeline import pages
from flows.pipeline.refusals import GRAPH_FILE
from flows.pipeline.results import of
from flows.pipeline.run import Run
from flows.pipeline.stages.spec import ALONE, DEVICES, Context, Outputs, StageSpec
from flows.pipeline.stages.supernets import operators_of
from importing import later_names
from profiling_agents.messages import DEFAULT_ENGINE
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, LUT_FOLDER, OPERATORS_FILE
from tasks.base.schemas.predictions import (
    ACCURACY_VALIDATION_FILE,
    LATENCY_FILE,
    LATENCY_VALIDATION_FILE,
    RESOURCES_FILE,
    SENSITIVITIES_FILE,
    AccuracyValidation,
    LatencyValidation,
    Resources,
)
from tasks.base.schemas.stored import StageResult
from tasks.evaluation.settings import EvaluationSettings
from tasks.measuring.runtime_options.settings import RUNTIME_OPTIONS_FILE, ChosenEngine
from tasks.prediction.settings import AccuracySettings, LatencySettings

if TYPE_CHECKING:
    from tasks.evaluation.quantise import Int8
    from tasks.measuring import profile
    from tasks.measuring.profile import plan as make_plan
    from tasks.measuring.runtime_options import stage as engine
    from tasks.measuring.subnets import LeasedDevice
    from tasks.prediction import latency, resources, sensitivity
else:
    globals().update(later_names(__file__))


def _profile(at: Context, out: Path, progress: Progress) -> StageResult:
    settings = at.config.profile_of(at.device)
    with at.run.devices.meter(at.device, at.engine) as meter:
        return profile.run(settings, operators_of(at), meter, out, progress, at.supernet, at.batch)


def _profile_device_s(at: Context) -> float | None:
    """Time for operators the device does not know yet [s]; None before they are enumerated, and for tables at a URL."""
    stage, label = ("enumerate", ALONE) if at.batch == 1 else ("batches", str(at.batch))
    if at.run.mirror is not None or label not in at.outputs(stage):
        return None
    return _plan(at)["estimated_s"]


def _int8(at: Context, out: Path, progress: Progress) -> StageResult:
    settings, exact = at.config.predict, at.output("sensitivities").folder
    precision, workspace = Int8(at.config.export.quantise), at.workspace(out, progress)
    return sensitivity.run_int8(settings, precision, at.config.data, at.trained, exact, workspace, at.run.workers)


def _latency(at: Context, out: Path, progress: Progress) -> StageResult:
    settings, profiled = at.config.predict, at.output("profile").folder
    with at.run.devices.exclusive(at.device, at.engine) as client:
        return latency.run(settings, at.supernet, profiled, client, out, progress, at.batch)


def _runtime_options(at: Context, out: Path, progress: Progress) -> StageResult:
    settings = at.config.runtime_options_of(at.device)
    with at.run.devices.exclusive(at.device) as client:
        device = LeasedDevice(name=at.device, client=client, batch=at.batch)
        return engine.run(settings, at.supernet, device, out, progress, by_operator=_by_operator(at))


def _by_operator(at: Context) -> bool:
    """Whether profiling chooses implementations per operator."""
    return at.config.profile_of(at.device).method == "in situ"


RUNTIME_OPTIONS = StageSpec(
    name="runtime_options",
    body=_runtime_options,
    scope=DEVICES,
    needs=("compile",),
    modules=("tasks.measuring.runtime_options.stage",),
    settings=lambda at: {**key_settings(at.config.runtime_options_of(at.device)), "by_operator": _by_operator(at)},
    inputs=lambda at: (at.fingerprint, at.device, at.supernet / GRAPH_FILE),
    artifacts=lambda at: (RUNTIME_OPTIONS_FILE,),
    facts=of(ChosenEngine, pages.engine),
    details=of(ChosenEngine, pages.tried_engines),
    device_s=lambda at: settings.limit_s if (settings := at.config.runtime_options_of(at.device)).tune else 0.0,
    wanted=lambda config, until: any(config.runtime_options_of(name).wanted for name in config.device),
    agent=True,
)
"""The options with which the runtime of one device runs whole networks. All later stages run models with them.

Its time is an upper bound; the choice under test when the limit is reached may exceed it.
"""

PROFILE = StageSpec(
    name="profile",
    body=_profile,
    scope=DEVICES,
    needs=("compile", "enumerate"),
    reads=("batches", "runtime_options"),
    modules=("tasks.measuring.profile",),
    settings=lambda at: key_settings(at.config.profile_of(at.device)),
    inputs=lambda at: (at.fingerprint, at.supernet, operators_of(at) / OPERATORS_FILE),
    artifacts=lambda at: (LUT_FOLDER, IMPLEMENTATIONS_FILE),
    facts=pages.latencies,
    details=pages.profiled,
    anew=lambda at: bool(at.config.profile.remeasure),
    device_s=_profile_device_s,
    agent=True,
    ends="profile",
)
"""The look-up table of one device."""

SENSITIVITIES = StageSpec(
    name="sensitivities",
    body=lambda at, out, progress: sensitivity.run(
        at.config.predict, at.config.data, at.trained, at.workspace(out, progress), at.run.workers
    ),
    needs=("finetune",),
    modules=("tasks.prediction.sensitivity",),
    settings=lambda at: key_settings(at.config.predict, AccuracySettings),
    inputs=lambda at: (at.data, at.trained),
    artifacts=lambda at: (SENSITIVITIES_FILE, ACCURACY_VALIDATION_FILE),
    facts=of(AccuracyValidation, pages.accuracy_errors),
    ends="predict",
)
"""The accuracy predictor and its error."""

INT8 = StageSpec(
    name="int8",
    body=_int8,
    needs=("finetune", "sensitivities"),
    modules=("tasks.prediction.sensitivity",),
    settings=lambda at: {**key_settings(at.config.predict, EvaluationSettings), **Int8(at.config.export.quantise).key},
    inputs=lambda at: (
        at.data,
        at.trained,
        at.file("sensitivities", SENSITIVITIES_FILE),
        at.file("sensitivities", ACCURACY_VALIDATION_FILE),
    ),
    artifacts=lambda at: (SENSITIVITIES_FILE, ACCURACY_VALIDATION_FILE),
    facts=of(AccuracyValidation, pages.accuracy_errors),
    wanted=lambda config, until: bool(config.in_int8),
    ends="predict",
)
"""The accuracy predictor of devices in int8 and its error."""

LATENCY = StageSpec(
    name="latency",
    body=_latency,
    scope=DEVICES,
    needs=("compile", "profile"),
    reads=("runtime_options",),
    modules=("tasks.prediction.latency",),
    settings=lambda at: key_settings(at.config.predict, LatencySettings),
    inputs=lambda at: (at.fingerprint, at.supernet, at.file("profile", LUT_FOLDER), at.implementations()),
    artifacts=lambda at: (LATENCY_FILE, LATENCY_VALIDATION_FILE),
    facts=of(LatencyValidation, pages.latency_errors),
    device_s=lambda at: at.config.predict.device_s(at.config.predict.random_subnets + len(("largest", "smallest"))),
    agent=True,
    ends="predict",
)
"""The latency predictor of one device and its error on whole SubNets."""

RESOURCES = StageSpec(
    name="resources",
    body=lambda at, out, progress: resources.run(
        at.config.resources_of(at.device),
        at.supernet,
        out,
        at.output("latency").folder,
        at.batch,
        at.output("profile").folder,
    ),
    scope=DEVICES,
    needs=("compile", "profile", "latency"),
    modules=("tasks.prediction.resources",),
    settings=lambda at: (
        key_settings(at.config.resources_of(at.device)) | ({} if at.batch == 1 else {"batch": at.batch})
    ),
    inputs=lambda at: (
        at.supernet,
        at.file("profile", LUT_FOLDER),
        at.file("latency", LATENCY_FILE),
        at.file("latency", LATENCY_VALIDATION_FILE),
    ),
    artifacts=lambda at: (RESOURCES_FILE,),
    facts=of(Resources, pages.needs),
    ends="predict",
)
"""Memory, multiply-accumulates, parameters and energy of SubNets on one device; "latency" has measured some of them there."""


def plan(run: Run, config: FlowConfig, device: str, outputs: Outputs) -> dict[str, Any]:
    """The plan of profiling on one device; nothing is measured."""
    return _plan(Context(run, config, PROFILE, device, outputs))


def _plan(at: Context) -> dict[str, Any]:
    """The plan with the engine that a finished stage has chosen, or with the runtime's defaults."""
    folder = at.run.found(RUNTIME_OPTIONS.at(at.of(RUNTIME_OPTIONS)))
    engine = ChosenEngine.read(folder.final / RUNTIME_OPTIONS_FILE).engine if folder.complete else DEFAULT_ENGINE
    capabilities = at.run.devices.client(at.device).with_engine(engine).capabilities()
    return make_plan(at.config.profile_of(at.device), operators_of(at), capabilities, at.supernet, at.batch)

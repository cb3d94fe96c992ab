"""The measurements of a SuperNet and of devices, and the predictors made from them."""

from pathlib import Path

import tasks.enumerate
import tasks.plan
import tasks.predict.resources
import tasks.predict.sensitivity
import tasks.predict.validate
import tasks.profile
from flows.config import FlowConfig
from flows.pages import facts
from flows.results import of
from flows.run import Run
from flows.stages.spec import DEVICES, Context, Outputs, StageSpec
from flows.stages.supernets import operators_of
from tasks.artifacts import key_settings
from tasks.predict.sensitivity import SENSITIVITIES_FILE
from tasks.predict.settings import AccuracySettings, LatencySettings
from tasks.predict.validate import LATENCY_FILE, VALIDATION_FILE
from tasks.profile import LUT_FOLDER
from tasks.progress import Progress
from tasks.schemas.accuracy import AccuracyValidation
from tasks.schemas.latency import LatencyValidation
from tasks.schemas.resources import Resources
from tasks.schemas.stored import StageResult


def _profile(at: Context, out: Path, progress: Progress) -> StageResult:
    settings = at.config.profile_of(at.device)
    with at.run.devices.meter(at.device) as meter:
        return tasks.profile.run(settings, operators_of(at), meter, out, progress, at.supernet, at.batch)


def _sensitivities(at: Context, out: Path, progress: Progress) -> StageResult:
    return tasks.predict.sensitivity.run(at.config.predict, at.config.data, at.trained, out, progress, at.store)


def _latency(at: Context, out: Path, progress: Progress) -> StageResult:
    settings, profiled = at.config.predict, at.output("profile").folder
    with at.run.devices.exclusive(at.device) as client:
        return tasks.predict.validate.run(settings, at.supernet, profiled, client, out, progress, at.batch)


def _resources(at: Context, out: Path, progress: Progress) -> StageResult:
    settings, timed, profiled = (
        at.config.resources_of(at.device), at.output("latency").folder, at.output("profile").folder
    )  # fmt: skip
    return tasks.predict.resources.run(settings, at.supernet, out, timed, at.batch, profiled)


PROFILE = StageSpec(
    name="profile",
    body=_profile,
    scope=DEVICES,
    needs=("compile", "enumerate"),
    reads=("batches",),
    modules=("tasks.profile",),
    settings=lambda at: key_settings(at.config.profile_of(at.device)),
    inputs=lambda at: (at.fingerprint, at.supernet, operators_of(at) / tasks.enumerate.OPERATORS_FILE),
    artifacts=lambda at: (LUT_FOLDER,),
    facts=facts.latencies,
    details=facts.profiled,
    anew=lambda at: bool(at.config.profile.remeasure),
    agent=True,
    ends="profile",
)
"""The look-up table of one device."""

SENSITIVITIES = StageSpec(
    name="sensitivities",
    body=_sensitivities,
    needs=("finetune",),
    modules=("tasks.predict.sensitivity",),
    settings=lambda at: key_settings(at.config.predict, AccuracySettings),
    inputs=lambda at: (at.data, at.trained),
    artifacts=lambda at: (SENSITIVITIES_FILE, tasks.predict.sensitivity.VALIDATION_FILE),
    facts=of(AccuracyValidation, facts.accuracy_errors),
    ends="predict",
)
"""The accuracy predictor and its error."""

LATENCY = StageSpec(
    name="latency",
    body=_latency,
    scope=DEVICES,
    needs=("compile", "profile"),
    modules=("tasks.predict.validate",),
    settings=lambda at: key_settings(at.config.predict, LatencySettings),
    inputs=lambda at: (at.fingerprint, at.supernet, at.file("profile", LUT_FOLDER)),
    artifacts=lambda at: (LATENCY_FILE, VALIDATION_FILE),
    facts=of(LatencyValidation, facts.latency_errors),
    agent=True,
    ends="predict",
)
"""The latency predictor of one device and its error on whole SubNets."""

RESOURCES = StageSpec(
    name="resources",
    body=_resources,
    scope=DEVICES,
    needs=("compile", "profile", "latency"),
    modules=("tasks.predict.resources",),
    settings=lambda at: (
        key_settings(at.config.resources_of(at.device)) | ({} if at.batch == 1 else {"batch": at.batch})
    ),
    inputs=lambda at: (
        at.supernet,
        at.file("profile", LUT_FOLDER),
        at.file("latency", LATENCY_FILE),
        at.file("latency", VALIDATION_FILE),
    ),
    artifacts=lambda at: (tasks.predict.resources.RESOURCES_FILE,),
    facts=of(Resources, facts.needs),
    ends="predict",
)
"""Memory, multiply-accumulates, parameters and energy of SubNets on one device, on which "latency" measured some."""


def plan(run: Run, config: FlowConfig, device: str, outputs: Outputs) -> tasks.plan.ProfilePlan:
    """The plan of profiling on one device; nothing is measured."""
    at = Context(run, config, PROFILE, device, outputs)
    settings, capabilities = config.profile_of(device), run.devices.capabilities(device)
    return tasks.plan.plan(settings, operators_of(at), capabilities, at.supernet, at.batch)

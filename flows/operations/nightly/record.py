"""The record of a night, from its finished stages: changes since the night before, and the stages worked again.

The keys of stages decide the work, not this module. The records of both nights list the changed stages and the settings
that each was made from, so any machine with the records can report the causes. One stage is worked anew every night:
latencies of operators and SubNets on each device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tasks.data
from flows.config import FlowConfig, RetargetConfig
from flows.pipeline.pages import Facts
from flows.pipeline.results import of
from flows.pipeline.run import Output, Run, Surroundings
from flows.pipeline.stages import PIPELINE
from flows.pipeline.stages.forecast import changes
from flows.pipeline.stages.spec import (
    ALONE,
    DEVICES,
    Context,
    Outputs,
    StageSpec,
    data_key,
    model_key,
    trained_supernet,
)
from flows.pipeline.versions import library_versions
from tasks.base.artifacts import MadeFrom, digest_of, key_settings
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.exports import EXPORTS_FILE, Exports
from tasks.base.schemas.predictions import ACCURACY_VALIDATION_FILE as ACCURACY_FILE
from tasks.base.schemas.predictions import LATENCY_VALIDATION_FILE as LATENCY_FILE
from tasks.base.schemas.predictions import AccuracyValidation, LatencyValidation
from tasks.base.schemas.stored import StageResult
from tasks.measuring.lut import LutStore
from tasks.measuring.lut.views import diff
from tasks.measuring.profile import LUT_FOLDER
from tasks.operations.nightly.records import (
    DeviceNight,
    Night,
    NightTimes,
    OperatorRounds,
    StageChange,
    StageNight,
    SubNetRounds,
)
from tasks.operations.nightly.timing import TIMES_FILE, NightRequest, time_device

PROFILE = "profile/"


def changed_inputs(before: Night, now: Night) -> list[str]:
    """A line for each changed input: settings, network, data, devices, code, libraries."""
    lines = _settings(before, now)
    for name in now.inputs:
        if (was := before.inputs.get(name)) != (is_now := now.inputs[name]):
            lines.append(f"{name}: {was} → {is_now}" if " " in name else f"{name}: other content")
    lines += [line for name in now.devices for line in _changes_of_device(before, now, name)]
    codes = {stage.stage: stage.code for stage in before.stages}
    others = [stage.stage for stage in now.stages if stage.code != codes.get(stage.stage, stage.code)]
    if others:
        lines.append(f"code of {len(others)} stages: {', '.join(others)}")
    return lines


def _settings(before: Night | StageNight, now: Night | StageNight) -> list[str]:
    """A line for each changed setting; none if either record lacks the settings."""
    if before.settings is None or now.settings is None:
        return []
    return [f"setting {line}" for line in changes(before.settings, now.settings)]


def _changes_of_device(before: Night, now: Night, name: str) -> Iterator[str]:
    if name not in before.devices:
        yield f"{name}: a new device"
        return
    was, is_now = before.devices[name], now.devices[name]
    lines = [f"{name}: {line}" for line in changes(was.facts, is_now.facts)]
    if not lines and was.fingerprint != is_now.fingerprint:
        lines = [f"{name}: fingerprint {was.fingerprint[:8]} → {is_now.fingerprint[:8]}"]
    yield from lines


def changed_stages(before: Night, now: Night) -> list[StageChange]:
    """The stages with another key than the night before, and the stages worked again under the same key."""
    known = {stage.stage: stage for stage in before.stages}
    moved = {stage.stage for stage in now.stages if stage.stage in known and stage.key != known[stage.stage].key}
    found = []
    for stage in now.stages:
        was = known.get(stage.stage)
        if was is None:
            found.append(StageChange(stage.stage, stage.worked, ("was not in the night before",)))
        elif stage.stage in moved:
            found.append(StageChange(stage.stage, stage.worked, tuple(_why(was, stage, before, now, moved))))
        elif stage.worked:
            why = "its folder was removed or damaged, or it was asked for anew"
            found.append(StageChange(stage.stage, True, (why,)))
    return found


def _why(was: StageNight, stage: StageNight, before: Night, now: Night, moved: set[str]) -> Iterator[str]:
    reasons = _settings(was, stage)
    if was.code != stage.code:
        reasons.append("its code")
    reasons += [
        f"device {name}"
        for name in stage.devices
        if name not in before.devices or before.devices[name].fingerprint != now.devices[name].fingerprint
    ]
    reasons += [title for title in stage.needs if title in moved]
    if not reasons:
        reasons = [name for name in ("data", "network") if before.inputs.get(name) != now.inputs[name]]
    yield from reasons or ["content of its inputs"]


def table_differences(before: Night, now: Night, around: Surroundings) -> dict[str, dict[str, Any]]:
    """The look-up tables that were measured again, compared with those of the night before, by device.

    around: has the folders of both nights, locally or at a URL.
    """
    known = {stage.stage: stage.key for stage in before.stages}
    found = {}
    for stage in now.stages:
        was = known.get(stage.stage, stage.key)
        if not stage.stage.startswith(PROFILE) or was == stage.key:
            continue
        first, second = (around.folder_of(stage.stage, key).final / LUT_FOLDER for key in (was, stage.key))
        try:
            found[stage.stage.removeprefix(PROFILE)] = diff(LutStore(first).rows(), LutStore(second).rows())
        except UserError:  # removed from the store, or no operator in common
            continue
    return found


FACTS = (
    "backend",
    "version",
    "build",
    "precision",
    "cpu_model",
    "operating_system",
    "system",
    "governor",
    "frequency_state",
)
"""Properties of a device by which people see changes there."""
NO_INPUTS = ("nightly", "tracking", "output_dir")
"""Sections of the config that no stage reads."""
SPECS = {spec.title or spec.name: spec for spec in PIPELINE}
FinishedStages = Sequence[Output]


def gather(
    run: Run, config: FlowConfig, outputs: Outputs, finished: FinishedStages, watched: Mapping[str, Output], began: str
) -> Night:
    """The record of tonight. finished: all stages except those of `watched`, which timed the devices."""
    sensitivities = AccuracyValidation.read(outputs["sensitivities"][ALONE].folder / ACCURACY_FILE)
    supernet = digest_of(trained_supernet(config, outputs))
    network = supernet if isinstance(config, RetargetConfig) else digest_of(model_key(config.model))
    libraries = {f"library {name}": version for name, version in library_versions().items()}
    return Night(
        began=began,
        network=config.name,
        run=run.folder.name,
        settings={name: value for name, value in config.plain().items() if name not in NO_INPUTS},
        supernet=supernet,
        inputs={"data": digest_of(data_key(config.data)), "network": network, **libraries},
        stages=tuple(_stages(finished, tuple(config.device))),
        devices={name: _device(run, name, outputs, watched[name]) for name in config.device},
        test_images=len(tasks.data.load(config.data, "test")),
        accuracy_errors={row.digest: 100 * abs(row.predicted_accuracy - row.accuracy) for row in sensitivities.rows},
    )


def with_times(night: Night, watched: Mapping[str, Output]) -> Night:
    """The same night with the new times of devices that were timed again."""
    times = {name: NightTimes.read(output.folder / TIMES_FILE) for name, output in watched.items()}
    again = {name: night.devices[name].model_copy(update={"times": new}) for name, new in times.items()}
    return night.model_copy(update={"devices": {**night.devices, **again}})


def _device(run: Run, name: str, outputs: Outputs, watched: Output) -> DeviceNight:
    validation = LatencyValidation.read(outputs["latency"][name].folder / LATENCY_FILE)
    held_out = [row for row in validation.subnets if row.used_for == "held out"]
    capabilities = run.devices.capabilities(name)
    known = ((field, getattr(capabilities, field)) for field in FACTS)
    return DeviceNight(
        fingerprint=run.devices.fingerprint(name),
        facts={field: str(value) for field, value in known if value not in (None, "")},
        times=NightTimes.read(watched.folder / TIMES_FILE),
        latency_errors={row.digest: abs(row.predicted_ms - row.measured_ms) / row.measured_ms for row in held_out},
    )


def _stages(finished: FinishedStages, devices: Sequence[str]) -> Iterator[StageNight]:
    titles = [output.stage for output in finished]
    for output in finished:
        name, _, label = output.stage.partition("/")
        spec, made_from = SPECS[name], MadeFrom.of(output.folder)
        needs: list[str] = []
        for need in (*spec.needs, *spec.reads):  # of a stage of this label its own, or all
            own = f"{need}/{label}"
            needs += [own] if own in titles else [title for title in titles if title.partition("/")[0] == need]
        of_devices = (label,) if label in devices else tuple(devices)
        yield StageNight(
            stage=output.stage,
            key=output.key,
            code=made_from.code if made_from else "",
            needs=tuple(dict.fromkeys(needs)),
            devices=of_devices if spec.agent else (),
            worked=not output.cached,
            seconds=output.seconds,
            settings=made_from.settings if made_from else None,
        )


def _watch(at: Context, out: Path, progress: Progress) -> StageResult:
    request = NightRequest(
        settings=at.config.nightly,
        profile=at.config.profile_of(at.device),
        timing=at.config.predict,
        supernet=at.trained,
        lut=at.file("profile", LUT_FOLDER),
        exports=Exports.read(at.file("export", EXPORTS_FILE)),
    )
    with at.leased(alone=True) as device:
        return time_device(device, request, out, progress)


def _described(times: NightTimes) -> Facts:
    timed: list[OperatorRounds | SubNetRounds] = [*times.operators, *times.subnets]
    failed = sum(bool(one.reason) for one in timed)
    return {"operators": str(len(times.operators)), "SubNets": str(len(times.subnets)), "failed": str(failed)}


WATCH = StageSpec(
    name="watch",
    body=_watch,
    scope=DEVICES,
    needs=("finetune", "profile", "export"),
    reads=("runtime_options",),
    modules=("tasks.operations.nightly.timing",),
    settings=lambda at: key_settings(at.config.nightly),
    inputs=lambda at: (at.fingerprint, at.device, at.file("export", EXPORTS_FILE)),
    artifacts=lambda at: (TIMES_FILE,),
    facts=of(NightTimes, _described),
    anew=lambda at: True,
    agent=True,
)
"""Tonight's latencies on one device. Not in the table of stages, since a night works it after the report."""

WATCH_AGAIN = replace(WATCH, settings=lambda at: {**WATCH.settings(at), "again": True})
"""The same stage, worked once more if a device is found slower."""

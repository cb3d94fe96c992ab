"""The stage that every night works anew: latencies of operators and SubNets on each device."""

from dataclasses import replace
from pathlib import Path

from flows.pipeline.pages.facts import Facts
from flows.pipeline.results import of
from flows.pipeline.stages.spec import DEVICES, Context, StageSpec
from tasks.base.artifacts import key_settings
from tasks.base.progress import Progress
from tasks.base.schemas.exports import EXPORTS_FILE, Exports
from tasks.base.schemas.operators import ChosenImplementations
from tasks.base.schemas.stored import StageResult
from tasks.measuring.profile import LUT_FOLDER
from tasks.operations.nightly import NightTimes
from tasks.operations.nightly.records import OperatorRounds, SubNetRounds
from tasks.operations.nightly.timing import TIMES_FILE, time_device


def _watch(at: Context, out: Path, progress: Progress) -> StageResult:
    config = at.config
    with at.run.devices.exclusive(at.device, at.engine, alone=True) as client:
        return time_device(
            config.nightly,
            config.profile_of(at.device),
            config.predict,
            at.trained,
            at.file("profile", LUT_FOLDER),
            Exports.read(at.file("export", EXPORTS_FILE)),
            ChosenImplementations.read(at.implementations()),
            client,
            out,
            progress,
            at.batch,
        )


def _told(times: NightTimes) -> Facts:
    timed: list[OperatorRounds | SubNetRounds] = [*times.operators, *times.subnets]
    failed = sum(bool(one.reason) for one in timed)
    return {"operators": str(len(times.operators)), "SubNets": str(len(times.subnets)), "failed": str(failed)}


WATCH = StageSpec(
    name="watch",
    body=_watch,
    scope=DEVICES,
    needs=("finetune", "profile", "export"),
    reads=("engine",),
    modules=("tasks.operations.nightly.timing",),
    settings=lambda at: key_settings(at.config.nightly),
    inputs=lambda at: (at.fingerprint, at.device, at.file("export", EXPORTS_FILE)),
    artifacts=lambda at: (TIMES_FILE,),
    facts=of(NightTimes, _told),
    anew=lambda at: True,
    agent=True,
)
"""Tonight's latencies on one device. Not in the table of stages, since a night works it after the report."""

WATCH_AGAIN = replace(WATCH, settings=lambda at: {**WATCH.settings(at), "again": True})
"""The same stage, worked once more if a device is found slower."""

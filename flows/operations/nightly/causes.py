"""Changes since the night before, and the stages that were worked again because of them.

The keys of stages decide what is worked, not this module. The records of both nights list the changed stages and the settings
that each was made from, so any machine with the records can report the causes.
"""

from collections.abc import Iterator

from flows.pipeline.run import Surroundings
from flows.pipeline.stages.forecast import changes
from tasks.base.errors import UserError
from tasks.measuring.lut import LutStore
from tasks.measuring.lut.summaries import TableDifference
from tasks.measuring.lut.views import diff
from tasks.measuring.profile import LUT_FOLDER
from tasks.operations.nightly import Night, StageNight
from tasks.operations.nightly.records import StageChange

PROFILE = "profile/"


def changed_inputs(before: Night, now: Night) -> list[str]:
    """A line for each changed input: settings, network, data, devices, code, libraries."""
    lines = _settings(before, now)
    for name in now.inputs:
        if (was := before.inputs.get(name)) != (is_now := now.inputs[name]):
            lines.append(f"{name}: {was} → {is_now}" if " " in name else f"{name}: other content")
    lines += [line for name in now.devices for line in _device(before, now, name)]
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


def _device(before: Night, now: Night, name: str) -> Iterator[str]:
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
            found.append(
                StageChange(stage.stage, True, ("its folder was removed or damaged, or it was asked for anew",))
            )
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


def table_differences(before: Night, now: Night, around: Surroundings) -> dict[str, TableDifference]:
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

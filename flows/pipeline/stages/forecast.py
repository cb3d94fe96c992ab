"""`--dry-run`: the stages of a run that are complete, the stages to be worked, and why. Nothing is worked or written.

A stage's key needs the content of its inputs, and stages still to be worked have not produced these yet. A later stage
therefore is "to work" if the store has no folder of it at all. Otherwise it "depends": it is complete if its inputs come out as
before.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flows.config import FlowConfig
from flows.pipeline.devices import Devices
from flows.pipeline.refusals import check_given
from flows.pipeline.results import SECONDS
from flows.pipeline.run import Output, StageRun, Surroundings
from flows.pipeline.stages.minutes import decided
from flows.pipeline.stages.spec import ALONE, Context, Outputs, StageSpec, rows
from flows.storage import STAGES_FOLDER
from flows.storage.mirror import mirror_of
from tasks.base.artifacts import RESULT_FILE, MadeFrom, StageFolder, Store, damage, read_json

State = Literal["complete", "to work", "depends"]
SHOWN = 3
"""Maximum number of changed settings that are named."""
UNKNOWN = "–"
TIMES = "time: of the device, by the settings; *: as long as it took here last; –: not known before its first run here"
"""The line below a table of expectations."""
REPORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """The state of one stage before a run, and the reason. `folder`: of a complete stage.

    For a stage to be worked, `device_s` is the time for which its device will be busy, if known, and `last_s` the duration of
    the latest stage of that name in this output folder, scaled to the same number of epochs.
    """

    stage: str
    state: State
    why: str
    device_s: float | None = None
    last_s: float | None = None
    folder: Path | None = None

    @property
    def time(self) -> str:
        """The time for the table. *: duration of the last run; –: unknown."""
        if self.state == "complete":
            return ""
        if self.device_s is not None:
            return f"about {self.device_s:.0f} s"
        return UNKNOWN if self.last_s is None else f"about {self.last_s:.0f} s*"

    def to_json(self) -> dict[str, Any]:
        """The row for `--json`."""
        return {**asdict(self), "folder": None if self.folder is None else str(self.folder)}


def forecast(table: Sequence[StageSpec], config: FlowConfig, until: str) -> list[Expectation]:
    """A row for each stage of a run up to command `until`. Devices are asked only if a key needs their fingerprint."""
    expected, _ = foreseen(table, config, until)
    report = [Expectation("report", "to work", "always made anew", last_s=REPORT_S)] if until == "report" else []
    return [*expected, *report]


def foreseen(table: Sequence[StageSpec], config: FlowConfig, until: str) -> tuple[list[Expectation], Outputs]:
    """A row for each stage before the report, and the outputs of the complete stages."""
    check_given(config)
    config = decided(config, until)
    with Devices(config.device) as devices:
        store, mirror = Store(config.folder / STAGES_FOLDER), mirror_of(config.output_dir)
        found = _Forecast(Surroundings(store, devices, mirror=mirror), config)
        return [row for spec in rows(table, config, until) for row in found.of(spec)], found.outputs


class _Forecast:
    """The stages so far: outputs of complete stages, and titles of the others, by name and label."""

    def __init__(self, around: Surroundings, config: FlowConfig) -> None:
        self._around, self._config = around, config
        self.outputs: dict[str, Mapping[str, Output]] = {}
        self._open: dict[str, dict[str, str]] = {}

    def of(self, spec: StageSpec) -> Iterator[Expectation]:
        """A row for each label of the next stage."""
        complete: dict[str, Output] = {}
        for label in spec.scope.labels(self._config):
            at = Context(self._around, self._config, spec, label, self.outputs)
            waits_for = sorted({title for name in (*spec.needs, *spec.reads) for title in self._missing(name, label)})
            if waits_for and not self._around.is_known(at.title):
                yield self._not_complete(at, "to work", "no folder yet")
            elif waits_for:
                yield self._not_complete(at, "depends", f"on what {' and '.join(waits_for)} will give")
            else:
                row, output = self._known(spec.at(at), at)
                yield row
                if output:
                    complete[label] = output
            if label not in complete:
                self._open.setdefault(spec.name, {})[label] = at.title
        self.outputs[spec.name] = spec.by_device(self._config, complete)

    def _missing(self, name: str, label: str) -> list[str]:
        """Titles of an earlier stage's missing outputs that `label` needs: its own, the only one, or all."""
        missing = self._open.get(name, {})
        labels = {*missing, *self.outputs.get(name, {})}
        own = label if label in labels else ALONE
        return [missing[own]] if own in missing else [] if own in labels else list(missing.values())

    def _not_complete(self, at: Context, state: State, why: str) -> Expectation:
        """The row of a stage with the time that it is expected to take."""
        lasted = _lasted(self._around.store.finished(at.title), at.spec.epochs(at))
        return Expectation(at.title, state, why, device_s=at.spec.device_s(at), last_s=next(lasted, None))

    def _known(self, stage: StageRun, at: Context) -> tuple[Expectation, Output | None]:
        """The row of a stage whose key is known, and its output if it is complete."""
        folder = self._around.found(stage)
        harm = damage(folder.final) if folder.complete else None
        if not folder.complete or harm:
            why = f"damaged: {harm}" if harm else _why(stage, folder, self._around)
            return self._not_complete(at, "to work", why), None
        output = Output.of(stage.name, folder, cached=True)
        return Expectation(stage.name, "complete", f"took {output.seconds:.1f} s", folder=folder.final), output


def _lasted(finished: Sequence[Path], epochs: int | None) -> Iterator[float]:
    """The time that each of these folders took [s]; for a training, scaled to this number of epochs."""
    for folder in finished:
        try:
            seconds = read_json(folder / RESULT_FILE)[SECONDS]
        except (OSError, ValueError, KeyError):
            continue  # damaged; the run will mend it
        made_from = MadeFrom.of(folder)
        before = None if made_from is None else made_from.settings.get("epochs")
        yield seconds * epochs / before if epochs is not None and before else seconds


def _why(stage: StageRun, folder: StageFolder, around: Surroundings) -> str:
    """The reason why a stage is not complete."""
    if stage.anew and folder.final.exists():
        return "asked for anew"
    if folder.partial.exists() and any(folder.partial.iterdir()):
        return "unfinished; goes on from there"
    if not around.is_known(stage.name):
        return "no folder yet"
    finished = around.store.finished(stage.name)
    settings = json.loads(json.dumps(stage.settings))
    described = [made_from for path in finished if (made_from := MadeFrom.of(path))]
    found = [(list(changes(one.settings, settings)), one.code != stage.code) for one in described]
    if not found:
        return "settings, inputs or code changed"
    names, is_code_changed = min(found, key=lambda pair: len(pair[0]))  # the most similar folder
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"settings changed: {', '.join(names[:SHOWN])}{more}"
    return "code changed" if is_code_changed else "inputs changed"


def changes(before: Any, after: Any, name: str = "") -> Iterator[str]:
    """`NAME BEFORE → AFTER` for every value that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            yield from changes(before.get(key), after.get(key), f"{name}.{key}".lstrip("."))
    elif before != after:
        yield f"{name} {_text(before)} → {_text(after)}"


def _text(value: Any) -> str:
    return UNKNOWN if value is None else str(value).replace("'", "").replace(" ", "")

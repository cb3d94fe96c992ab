"""State that all stages of one run share, and the single way to execute a stage: found complete in the store, or worked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from rich.progress import Progress as Bars

from adaptive_runtime.base.telemetry import span
from flows.machine import is_interrupted
from flows.pipeline.devices import Devices
from flows.pipeline.results import SECONDS, numbers
from flows.pipeline.versions import code_version
from flows.storage.mirror import Mirror
from flows.storage.sharing import RunLocks, StageList
from importing import later_names
from tasks.base.artifacts import MadeFrom, StageFolder, Store, digest_of
from tasks.base.errors import MAKE_ROOM, UserError, shortage
from tasks.base.progress import Progress
from tasks.base.schemas.stored import StageResult

if TYPE_CHECKING:
    from flows.pipeline.progress import RunProgress, StageProgress, is_interruption
    from flows.pipeline.tracking.tracker import Tracker
    from tasks.evaluation.subnets import EvaluationWorkers
else:
    globals().update(later_names(__file__))

Body = Callable[[Path, Progress], StageResult]


class StageRow(TypedDict):
    """A stage of a run, for the report. `cached`: found complete in the store."""

    stage: str
    seconds: float
    cached: bool


class StageSummary(StageRow):
    """A stage of a run as JSON."""

    key: str
    folder: str
    result: StageResult


class RunSummary(TypedDict):
    """The result of a command, without the answer to a question. `run`: the run's folder."""

    run: str
    stages: list[StageSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A finished stage: its folder and its result."""

    stage: str
    key: str
    folder: Path
    result: StageResult
    seconds: float
    cached: bool
    mended: tuple[str, ...] = ()
    """A line for each damaged file that was quarantined before."""

    @classmethod
    def of(cls, stage: str, folder: StageFolder, *, cached: bool) -> Output:
        """The output of a stage in its complete folder."""
        place, result = folder.final, folder.result()
        return cls(
            stage=stage,
            key=place.name,
            folder=place,
            result=result,
            seconds=result[SECONDS],
            cached=cached,
            mended=folder.mended,
        )

    def row(self) -> StageRow:
        """Name, duration and origin, for the report."""
        return {"stage": self.stage, "seconds": self.seconds, "cached": self.cached}

    def summary(self) -> StageSummary:
        """The stage as JSON."""
        return {**self.row(), "key": self.key, "folder": str(self.folder), "result": self.result}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One stage of one run: the components of its key, and the files that are logged to MLflow."""

    name: str
    modules: tuple[str, ...]
    settings: dict[str, Any]
    inputs: tuple[Any, ...] = ()
    artifacts: tuple[str, ...] = ()
    registered: str | None = None
    """Model registry name for the first artifact."""
    anew: bool = False
    """Whether it is worked even if it is complete; its folder is then replaced."""

    @property
    def code(self) -> str:
        """Version of the stage's code."""
        return code_version(*self.modules)

    def key(self) -> str:
        """Digest of the stage's name, its settings, the content of its inputs and the version of its code."""
        return digest_of(self.name, self.settings, self.code, *self.inputs)


class Surroundings:
    """The store of finished stages, and the devices: enough to inspect stages. A plain class, like `Run`.

    workers: processes that evaluate SubNets; None: this process does. mirror: of an output folder at a URL.
    """

    def __init__(
        self, store: Store, devices: Devices, workers: EvaluationWorkers | None = None, mirror: Mirror | None = None
    ) -> None:
        self.store, self.devices, self.workers, self.mirror = store, devices, workers, mirror

    def found(self, stage: StageRun) -> StageFolder:
        """The folder of a stage of a run."""
        return self.folder_of(stage.name, stage.key(), anew=stage.anew)

    def folder_of(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of a stage in its current state, downloaded if complete at the URL; nothing is repaired or worked."""
        folder = self.store.folder(stage, key, anew=anew)
        if self.mirror is not None and not anew and not folder.complete:
            self.mirror.fetch_stage(folder)
        return folder

    def is_known(self, stage: str) -> bool:
        """Whether a stage of this name was ever completed, under any key."""
        return bool(self.store.finished(stage)) or (self.mirror is not None and bool(self.mirror.stages(stage)))


class Run(Surroundings):
    """One pipeline run. This is a plain class because Prefect inspects dataclasses that are passed to tasks."""

    def __init__(self, around: Surroundings, tracker: Tracker, bars: Bars, folder: Path, locks: RunLocks) -> None:
        """folder: of the run, named by its key."""
        super().__init__(around.store, around.devices, around.workers, around.mirror)
        self.tracker, self.bars, self.folder, self.locks, self.key = tracker, bars, folder, locks, folder.name
        self.stage_list = StageList(folder)
        self.outputs: list[Output] = []
        self.progress = RunProgress()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make stages in other threads end at their next steps."""
        self._stopped.set()

    def is_interrupted(self) -> bool:
        """Whether the run was stopped, lost its locks, or received Ctrl-C or SIGTERM, even if a library caught the signal."""
        return self._stopped.is_set() or self.locks.is_lost or is_interrupted()

    @property
    def is_shared(self) -> bool:
        """Whether another worker is in this run."""
        return self.locks.others(self.key) > 0

    def results(self, *outputs: Output) -> RunSummary:
        """The result of a command that ends with these stages."""
        return {"run": str(self.folder), "stages": [output.summary() for output in outputs]}

    def execute(self, stage: StageRun, body: Body, tell: Callable[[Output], None] | None = None) -> Output:
        """The stage's output: from the store if complete there, else by `body` in the partial folder.

        tell: logs the run's numbers of the stage to MLflow, once per run, by the first worker; None: there are no numbers.
        StageElsewhere: another worker is at it.
        """
        key = stage.key()
        with self.locks.stage(stage.name, key):
            output = self._found(stage, key, body, tell)
            if self.stage_list.add(self._place(output)) and self.mirror is not None:
                self.mirror.publish_results([], [self.stage_list.file.relative_to(self.mirror.folder).as_posix()])
        self.outputs.append(output)
        self.progress.end_stage()
        state = "found complete" if output.cached else f"{output.seconds:.1f} s"
        self.bars.console.print(f"{stage.name}: {state}", markup=False, highlight=False)
        return output

    def keep_own_stages(self) -> None:
        """Refer only to the stages of this run, which is complete."""
        self.stage_list.keep(map(self._place, self.outputs))

    def _place(self, output: Output) -> str:
        return output.folder.relative_to(self.store.root).as_posix()

    def _found(self, stage: StageRun, key: str, body: Body, tell: Callable[[Output], None] | None) -> Output:
        """A stage locked by this worker: worked if incomplete, and logged to MLflow if it was not yet."""
        described = tell is not None and self.tracker.has_reported(stage.name, key)
        folder = self.store.open_stage(stage.name, key, anew=stage.anew and not described)

        def say(line: str) -> None:
            self.bars.console.print(f"{stage.name}: {line}", markup=False, highlight=False, soft_wrap=True)

        for line in folder.mended:
            say(line)
        with self.mirror.turn(folder, say) if self.mirror else nullcontext():
            cached = folder.complete
            run_id = None if described and cached else self.tracker.start_stage(stage.name, key)
            if run_id and not cached:
                self._work(stage, body, folder, run_id)
        output = Output.of(stage.name, folder, cached=cached)
        if run_id:
            self._track(stage, output, run_id)
            if tell:
                tell(output)
                self.tracker.set_reported(run_id)
        return output

    def _work(self, stage: StageRun, body: Body, folder: StageFolder, run_id: str) -> None:
        """Run the body and publish its result; the stage's MLflow run records how it ended."""
        metrics = self.tracker.metrics(run_id)
        started = time.monotonic()
        try:
            with span(f"stage {stage.name}", stage=stage.name, key=folder.final.name, run=self.folder.name):
                shown = StageProgress(stage.name, self.bars, self.is_interrupted, metrics.add, self.progress)
                result = body(folder.path, shown)
            seconds = round(time.monotonic() - started, 3)
            self.locks.check()
            folder.publish({**result, SECONDS: seconds}, MadeFrom(settings=stage.settings, code=stage.code))
        except BaseException as error:
            if self.locks.is_lost:
                self.locks.check()  # raises; folder and MLflow run may belong to another worker by now
            self.tracker.finish(run_id, "KILLED" if is_interruption(error) else "FAILED")
            if not any(folder.path.iterdir()):  # it refused its input before writing anything
                folder.path.rmdir()
            if what := shortage(error):
                raise UserError(stage.name, what, next_step=MAKE_ROOM) from error
            raise
        finally:
            metrics.flush()

    def _track(self, stage: StageRun, output: Output, run_id: str) -> None:
        self.tracker.log_params(run_id, stage.settings)
        cached, folder = str(output.cached).lower(), str(output.folder)
        self.tracker.tag(run_id, {"autotailor.cached": cached, "autotailor.folder": folder})
        for name in stage.artifacts:
            self.tracker.log_artifact(run_id, output.folder, name)
        if stage.registered:
            name = stage.artifacts[0]
            self.tracker.register(stage.registered, run_id, name, digest_of(output.folder / name))
        known = numbers(output.result) | {SECONDS: output.seconds}
        self.tracker.log_series(run_id, {name: [value] for name, value in known.items()})
        self.tracker.finish(run_id)

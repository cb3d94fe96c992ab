"""What all stages of one run share, and the one way a stage is executed: found complete in the store, or worked."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress as Bars

from flows.devices import Devices
from flows.progress import StageProgress, Stopped
from flows.tracking import Tracker
from flows.versions import code_version
from tasks.artifacts import StageFolder, Store, digest_of
from tasks.errors import UserError
from tasks.progress import Progress
from tasks.shortage import shortage

SECONDS = "seconds"

Body = Callable[[Path, Progress], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A finished stage: its folder and what it returned."""

    stage: str
    key: str
    folder: Path
    result: dict[str, Any]
    seconds: float
    cached: bool

    def row(self) -> dict[str, Any]:
        """Name, duration and origin, for the report."""
        return {"stage": self.stage, "seconds": self.seconds, "cached": self.cached}

    def summary(self) -> dict[str, Any]:
        """The stage as JSON."""
        return {
            **self.row(),
            "key": self.key,
            "folder": str(self.folder),
            "result": self.result,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of one run: what its key is made of, and which of its files go to MLflow."""

    name: str
    modules: tuple[str, ...]
    settings: dict[str, Any]
    inputs: tuple[Any, ...] = ()
    artifacts: tuple[str, ...] = ()
    registered: str | None = None
    """Name in the model registry for the first artifact."""
    anew: bool = False
    """Worked also when it is complete; its folder is then replaced."""

    def key(self) -> str:
        """Digest of the stage's name, its settings, the content of its inputs and the version of its code."""
        return digest_of(self.name, self.settings, code_version(*self.modules), *self.inputs)


class Run:
    """One pipeline run. A plain class: Prefect looks into dataclasses that are passed to tasks, and not into this."""

    def __init__(self, store: Store, tracker: Tracker, bars: Bars, devices: Devices, folder: Path) -> None:
        self.store = store
        self.tracker = tracker
        self.bars = bars
        self.devices = devices
        self.folder = folder
        self.stopped = threading.Event()
        self.outputs: list[Output] = []

    def results(self, *outputs: Output) -> dict[str, Any]:
        """What a command that ends with these stages returns."""
        return {"run": str(self.folder), "stages": [output.summary() for output in outputs]}

    def execute(self, stage: Stage, body: Body) -> Output:
        """The stage's output: from the store when complete there, else by `body` in the partial folder."""
        key = stage.key()
        folder = self.store.open_stage(stage.name, key, anew=stage.anew)
        run_id = self.tracker.start_stage(stage.name, key)
        cached = folder.complete
        if not cached:
            self._work(stage, body, folder, run_id)
        output = Output(
            stage=stage.name,
            key=key,
            folder=folder.final,
            result=folder.result(),
            seconds=folder.result()[SECONDS],
            cached=cached,
        )
        self._track(stage, output, run_id)
        self.outputs.append(output)
        state = "found complete" if cached else f"{output.seconds:.1f} s"
        self.bars.console.print(f"{stage.name}: {state}", markup=False, highlight=False)
        return output

    def _work(self, stage: Stage, body: Body, folder: StageFolder, run_id: str) -> None:
        """Run the body and publish its result; the stage's MLflow run says how it ended."""
        metrics = self.tracker.metrics(run_id)
        started = time.monotonic()
        try:
            result = body(folder.path, StageProgress(stage.name, self.bars, self.stopped, metrics.add))
            folder.publish({**result, SECONDS: round(time.monotonic() - started, 3)})
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt | Stopped)
            self.tracker.finish(run_id, "KILLED" if interrupted else "FAILED")
            _remove_if_empty(folder.path)
            if what := shortage(error):
                first = str(error).partition("\n")[0] or type(error).__name__
                raise UserError(
                    stage.name, f"{what}: {first}", next_step="make room, or ask for less; the same command goes on"
                ) from error
            raise
        finally:
            metrics.flush()

    def _track(self, stage: Stage, output: Output, run_id: str) -> None:
        self.tracker.log_params(run_id, stage.settings)
        self.tracker.tag(
            run_id, {"autotailor.cached": str(output.cached).lower(), "autotailor.folder": str(output.folder)}
        )
        for name in stage.artifacts:
            path = output.folder / name
            if output.cached:
                self.tracker.tag(run_id, {f"autotailor.digest.{name}": digest_of(path)})
            else:
                self.tracker.log_artifact(run_id, path, digest_of(path))
        if stage.registered and not output.cached:
            name = stage.artifacts[0]
            self.tracker.register(stage.registered, run_id, name, digest_of(output.folder / name))
        metrics = self.tracker.metrics(run_id)
        metrics.add({SECONDS: output.seconds}, 0)
        metrics.flush()
        self.tracker.finish(run_id)


def _remove_if_empty(folder: Path) -> None:
    """Leave nothing behind when a stage refused its input before it wrote anything."""
    if not any(folder.iterdir()):
        folder.rmdir()

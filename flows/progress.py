"""Progress of stages on the terminal (rich bars with estimates), in MLflow (metrics) and in the Prefect UI (artifacts)."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column

from tasks.artifacts import digest_of
from tasks.progress import Bar

UPDATE_SECONDS = 3.0


class Stopped(Exception):
    """The run was interrupted: stages leave at their next step; what they have finished stays on disk."""


def is_interruption(error: BaseException) -> bool:
    """Whether a run was ended from outside: Ctrl-C, SIGTERM, a cancelled flow run."""
    return isinstance(error, Stopped) or not isinstance(error, Exception)


def terminal_bars(console: Console) -> Bars:
    """Bars for all stages and devices of one run; start and stop it as a context."""
    return Bars(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", style="dim", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console,
        refresh_per_second=4,
        expand=True,
    )


@dataclass(slots=True)
class _StageBar:
    """One bar: on the terminal at once, in the Prefect UI every few seconds."""

    bars: Bars
    task: TaskID
    artifact: UUID
    total: int
    done: int
    is_interrupted: Callable[[], bool]
    updated: float = field(default_factory=time.monotonic)

    def advance(self, count: int = 1) -> None:
        """Count finished pieces; raises Stopped when the run was interrupted."""
        if self.is_interrupted():
            raise Stopped
        self.done += count
        self.bars.advance(self.task, count)
        if time.monotonic() - self.updated > UPDATE_SECONDS:
            self.publish()

    def note(self, text: str) -> None:
        """A short state beside the bar."""
        self.bars.update(self.task, note=text)

    def end(self) -> None:
        """The work is over: what was left out of it, since it was not needed, is missing no more."""
        self.total = self.done
        self.bars.update(self.task, total=self.done, completed=self.done)

    def publish(self) -> None:
        """Bring the artifact in the Prefect UI up to date."""
        self.updated = time.monotonic()
        update_progress_artifact(self.artifact, progress=_percent(self.done, self.total))


@dataclass(frozen=True, slots=True)
class StageProgress:
    """`tasks.progress.Progress` of one stage; use it inside the stage's Prefect task."""

    stage: str
    bars: Bars
    is_interrupted: Callable[[], bool]
    log_metrics: Callable[[dict[str, float], int], None]

    def bar(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Bar]:
        """A bar of `total` pieces of which `done` are there from an earlier, interrupted run."""
        return self._bar(name, total, done)

    @contextmanager
    def _bar(self, name: str, total: int, done: int) -> Iterator[Bar]:
        device = self.stage.partition("/")[2]
        description = name if device in name else f"{name} {device}"
        task = self.bars.add_task(description, total=total, completed=done, note="")
        artifact = create_progress_artifact(
            progress=_percent(done, total), key=artifact_key("progress", self.stage), description=description
        )
        assert isinstance(artifact, UUID)
        bar = _StageBar(self.bars, task, artifact, total, done, self.is_interrupted)
        try:
            yield bar
            bar.end()
        finally:
            bar.publish()
            self.bars.stop_task(task)

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Metrics of the running stage, to MLflow."""
        self.log_metrics(values, step)

    def say(self, line: str) -> None:
        """On the terminal above the bars, and in the log of the Prefect task."""
        self.bars.console.print(f"{self.stage}: {line}", markup=False, soft_wrap=True)
        get_run_logger().warning(line)


def _percent(done: int, total: int) -> float:
    """All is done of work without pieces."""
    return 100 * min(1.0, done / total) if total else 100.0


def artifact_key(kind: str, name: str) -> str:
    """A Prefect artifact key (lower case letters, digits, dashes), one per name."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"{kind}-{plain.strip('-')}-{digest_of(name)[:4]}"

"""Progress of stages on the terminal (rich bars with estimates), in MLflow (metrics) and in the Prefect UI (an artifact)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from tasks.base.artifacts import digest_of
from tasks.base.progress import Bar

UPDATE_SECONDS = 3.0
PROGRESS_KEY = "progress"
"""The key of the artifact in Prefect, one per run."""


class Stopped(Exception):
    """The run was interrupted: stages stop at their next step; their finished parts stay on disk."""


def is_interruption(error: BaseException) -> bool:
    """Whether a run was ended from outside: Ctrl-C, SIGTERM, a cancelled flow run."""
    return isinstance(error, Stopped) or not isinstance(error, Exception)


def terminal_bars(console: Console) -> Bars:
    """Bars for all stages and devices of one run; use as a context."""
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


class RunProgress:
    """The progress of a whole run as one artifact in the Prefect UI, updated every few seconds by all threads.

    Its percentage counts finished stages; its description shows the bars of running ones. A plain class: see `Run`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._artifact: UUID | None = None
        self._stages = self._over = 0
        self._at_work: dict[int, str] = {}
        self._published_s = time.monotonic()

    def begin(self, stages: int) -> None:
        """Begin with this number of stages to come. Call it in the flow, so that the artifact belongs to the run."""
        with self._lock:
            self._stages = stages
            found = create_progress_artifact(progress=self._percent(), key=PROGRESS_KEY, description=self._text())
            assert isinstance(found, UUID)
            self._artifact = found

    def end_stage(self) -> None:
        """Count one more finished stage: worked, or found complete."""
        with self._lock:
            self._over += 1
            self._publish(at_once=self._over == self._stages)

    def tell(self, bar: int, text: str | None) -> None:
        """Set the text of one bar by its number; None: the bar has ended."""
        with self._lock:
            if text is None:
                self._at_work.pop(bar, None)
            else:
                self._at_work[bar] = text
            self._publish(at_once=False)

    def _publish(self, *, at_once: bool) -> None:
        now_s = time.monotonic()
        if self._artifact is None or not (at_once or now_s - self._published_s > UPDATE_SECONDS):
            return
        self._published_s = now_s
        update_progress_artifact(self._artifact, progress=self._percent(), description=self._text())

    def _percent(self) -> float:
        """Share of finished stages [%]; 100 for a run without stages. Stages after the walk do not count."""
        return 100 * min(1.0, self._over / self._stages) if self._stages else 100.0

    def _text(self) -> str:
        return "; ".join([f"{min(self._over, self._stages)} of {self._stages} stages", *self._at_work.values()])


@dataclass(slots=True)
class _StageBar:
    """One bar on the terminal, which also appears in the description of the run's progress."""

    bars: Bars
    task: TaskID
    description: str
    total: int
    done: int
    is_interrupted: Callable[[], bool]
    whole: RunProgress

    def advance(self, count: int = 1) -> None:
        """Count finished pieces; raises Stopped if the run was interrupted."""
        if self.is_interrupted():
            raise Stopped
        self.done += count
        self.bars.advance(self.task, count)
        self.publish()

    def note(self, text: str) -> None:
        """Show a short state beside the bar."""
        self.bars.update(self.task, note=text)

    def end(self) -> None:
        """Mark the bar as finished; pieces left out as unnecessary no longer count."""
        self.total = self.done
        self.bars.update(self.task, total=self.done, completed=self.done)

    def publish(self) -> None:
        """Update the run's progress."""
        self.whole.tell(self.task, f"{self.description} {self.done} of {self.total}")


@dataclass(frozen=True, slots=True)
class StageProgress:
    """`tasks.base.progress.Progress` of one stage; use it inside the stage's Prefect task. whole: the run's progress."""

    stage: str
    bars: Bars
    is_interrupted: Callable[[], bool]
    log_metrics: Callable[[dict[str, float], int], None]
    whole: RunProgress

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar of `total` pieces, of which an earlier, interrupted run has completed `done`."""
        device = self.stage.partition("/")[2]
        description = name if device in name else f"{name} {device}"
        task = self.bars.add_task(description, total=total, completed=done, note="")
        bar = _StageBar(self.bars, task, description, total, done, self.is_interrupted, self.whole)
        bar.publish()
        try:
            yield bar
            bar.end()
        finally:
            self.whole.tell(task, None)
            self.bars.stop_task(task)

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Log metrics of the running stage to MLflow."""
        self.log_metrics(values, step)

    def say(self, line: str) -> None:
        """Print a line on the terminal above the bars, and log it in the Prefect task."""
        self.bars.console.print(f"{self.stage}: {line}", markup=False, soft_wrap=True)
        get_run_logger().warning(line)


def artifact_key(kind: str, name: str) -> str:
    """A Prefect artifact key (lower case letters, digits, dashes), unique per name."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return f"{kind}-{plain.strip('-')}-{digest_of(name)[:4]}"

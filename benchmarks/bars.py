"""Progress of the stages as bars on the terminal, for benchmarks that run stages without a flow."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class _Bar:
    def __init__(self, progress: Progress, name: str, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=total, completed=done)

    def advance(self, count: int = 1) -> None:
        self._progress.advance(self._task, count)

    def note(self, text: str) -> None:
        self._progress.update(self._task, description=text)


class Terminal:
    """One bar at a time."""

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[_Bar]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, transient=True) as progress:
            yield _Bar(progress, name, total, done)

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Results say them in the end."""

    def say(self, line: str) -> None:
        """On the terminal."""
        print(line)

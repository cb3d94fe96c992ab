"""Standard output without truncation: whole lines in files and pipes, wrapped cells in a terminal."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from tasks.base.pages.text import PlainConsole

Answer = Mapping[str, Any]
"""The result of a command, as JSON for `--json`."""
WIDE = 10_000
"""Width without a terminal [columns]; a table takes only the columns that it needs."""


class Terminal:
    """The console on which commands show their results."""

    def __init__(self) -> None:
        found = PlainConsole()
        has_width = found.is_terminal or "COLUMNS" in os.environ
        self._console = found if has_width else PlainConsole(width=WIDE)

    def show(self, *shown: RenderableType) -> None:
        """Show tables and groups of tables, with cells that wrap."""
        for each in shown:
            for table in _tables(each):
                for column in table.columns:
                    column.no_wrap, column.overflow = False, "fold"
            self._console.print(each)

    def say(self, line: str) -> None:
        """Print a line of plain text without line breaks, so that paths in it can be copied."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _TerminalBar:
    def __init__(self, bars: Bars, task: TaskID) -> None:
        self._bars, self._task = bars, task

    def advance(self, count: int = 1) -> None:
        self._bars.advance(self._task, count)

    def note(self, text: str) -> None:
        self._bars.update(self._task, note=text)


class TerminalProgress:
    """`tasks.base.progress.Progress` of a command that works no stage: bars with estimates on stderr, inside a block."""

    def __init__(self) -> None:
        texts = TextColumn("{task.description}"), TextColumn("{task.fields[note]}", style="dim")
        columns = BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn()
        self._bars = Bars(texts[0], *columns, texts[1], console=PlainConsole(stderr=True))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[_TerminalBar]:
        """A bar of `total` pieces, of which `done` are complete."""
        yield _TerminalBar(self._bars, self._bars.add_task(name, total=total, completed=done, note=""))

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Metrics are dropped: a command without a run stores none."""

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


def age(seconds: float) -> str:
    """An age [s] in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _tables(shown: RenderableType) -> Iterator[Table]:
    if isinstance(shown, Table):
        yield shown
    elif isinstance(shown, Group):
        for each in shown.renderables:
            yield from _tables(each)

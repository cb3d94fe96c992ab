"""Standard output, on which nothing is cut: whole lines in files and pipes, wrapped cells in a terminal."""

import os
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table

WIDE = 10_000
"""Columns where there is no terminal; a table takes those that it needs."""


class Terminal:
    """The console on which commands show their results."""

    def __init__(self) -> None:
        found = Console()
        has_width = found.is_terminal or "COLUMNS" in os.environ
        self._console = found if has_width else Console(width=WIDE)

    def show(self, *shown: RenderableType) -> None:
        """Tables and groups of tables, with cells that wrap."""
        for each in shown:
            for table in _tables(each):
                for column in table.columns:
                    column.no_wrap, column.overflow = False, "fold"
            self._console.print(each)

    def say(self, line: str) -> None:
        """A line of plain text, in one piece, so that paths in it can be copied."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _tables(shown: RenderableType) -> Iterator[Table]:
    if isinstance(shown, Table):
        yield shown
    elif isinstance(shown, Group):
        for each in shown.renderables:
            yield from _tables(each)

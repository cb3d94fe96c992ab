"""Tables of results: for the terminal, or for the README."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def show(heads: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False, width: int = 160) -> None:
    """Print cells below their heads."""
    if markdown:
        for line in (heads, ["---"] * len(heads), *rows):
            print(f"| {' | '.join(line)} |")
        return
    table = Table(*heads)
    for line in rows:
        table.add_row(*line)
    Console(width=width).print(table)

"""The console of all commands: what it shows of devices, servers and files has no power over the terminal."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from profiling_agents.lines import printable


class PlainConsole(Console):
    """A console that makes all text printable; colours and the moves of bars are its own, and stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is shown."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)

"""Text for people: numbers as short text, and the console of all commands.

Nothing here is escaped for HTML. Text from devices, servers and files cannot control the terminal.
"""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from profiling_agents.lines import printable


class PlainConsole(Console):
    """A console that makes all text printable; its own colours and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of the output, with printable text."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)


def count(value: float | str) -> str:
    """A large count: exact below a million, then scientific. Takes text for integers beyond 2**53."""
    number = int(value)
    if number < 1_000_000:
        return f"{number:,}"
    text = str(number)
    return f"{text[0]}.{text[1:3]}e{len(text) - 1}"


def amount(value: int) -> str:
    """A count with three digits and a unit: 592, 11.4 k, 25.6 M, 4.09 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g} {unit}"
    return str(value)


def millions(value: float) -> str:
    """A count in millions with three digits."""
    return f"{value / 1e6:.3g} M"


def milliseconds(value: float | None) -> str:
    """Latency with four digits, microseconds kept."""
    return "–" if value is None else f"{value:.4g} ms"


def percent(share: float | None) -> str:
    """A fraction in percent."""
    return "–" if share is None else f"{100 * share:.1f} %"


def size(count_bytes: int | None) -> str:
    """Bytes with three digits, in kB or MB."""
    if count_bytes is None:
        return "–"
    return f"{count_bytes / 1e6:.3g} MB" if count_bytes >= 999_500 else f"{count_bytes / 1e3:.3g} kB"

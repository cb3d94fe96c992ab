"""The end of a stream in the terminal."""

from rich.markup import escape
from rich.table import Table

from tasks.base.schemas.streams import StreamedMethod, StreamedNetwork

MOST_PHASES = 12
"""Largest number of phase columns; with more phases, the table shows the whole stream alone."""


def streamed_table(found: StreamedNetwork) -> Table:
    """A row for each method: its error on the stream, relative to the source's, its errors by phase, and its guard's events."""
    name, kind = escape(found.title), found.settings["stream"]
    title = f"{name} ({found.digest[:8]}) on a {kind} stream of {found.images} images: error [%]"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = "; ".join(f"{escape(method)} left out: {escape(why)}" for method, why in found.left_out.items())
    table.add_column("method")
    phases = found.phases if len(found.phases) <= MOST_PHASES else ()
    for head in ("all", "of the source's", *(phase.name.replace("_", " ") for phase in phases), "events"):
        table.add_column(head, justify="left" if head == "events" else "right")
    for one in found.methods:
        errors = (f"{error:.1f}" for error in one.phase_error_percent[: len(phases)])
        table.add_row(
            one.method, f"[bold]{one.error_percent:.1f}[/]", share_text(one, found), *errors, events_text(one)
        )
    return table


def events_text(one: StreamedMethod) -> str:
    """Counts of events by kind."""
    kinds = dict.fromkeys(event.kind for event in one.events)
    return ", ".join(f"{kind} {sum(event.kind == kind for event in one.events)}" for kind in kinds)


def share_text(one: StreamedMethod, found: StreamedNetwork) -> str:
    """A method's error in percent of the source's."""
    source = found.errors_percent.get("source")
    return f"{100 * one.error_percent / source:.0f} %" if source else "–"

"""Streams that drift, in a report: the error of SubNets over time, under each method, as figures and tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape as escape_markup
from rich.table import Table

from tasks.base.schemas.results import STREAM_FILE, StreamedMethod, StreamedNetwork
from tasks.report.charts import COLORS, blank
from tasks.report.parts import GREY, Row, card_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_PHASES = 12
"""Largest number of phase columns; with more phases, the table shows the whole stream alone."""


def streamed_table(found: StreamedNetwork) -> Table:
    """A row for each method: its error on the stream, relative to the source's, its errors by phase, and its guard's events."""
    name, kind = escape_markup(found.title), found.settings["stream"]
    title = f"{name} ({found.digest[:8]}) on a {kind} stream of {found.images} images: error [%]"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = "; ".join(
        f"{escape_markup(method)} left out: {escape_markup(why)}" for method, why in found.left_out.items()
    )
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


SYMBOLS = {
    "drift": "triangle-up",
    "aligned": "diamond",
    "unaligned": "diamond-open",
    "kept": "circle",
    "undone": "x",
    "over": "square",
}
"""Symbols of the events of a guard."""


def figure(row: Row) -> go.Figure:
    """Error of each window under each method; lines separate phases, and events of guards are marked."""
    chart = blank("images of the stream", "error [%]", height=420)
    others, size, images = itertools.cycle(COLORS), row["window_images"], row["images"]
    ends = [min(first + size, images) for first in range(0, images, size)]
    for method in row["methods"]:
        color = GREY if method["method"] == "source" else next(others)
        chart.add_scatter(
            x=ends,
            y=method["window_error_percent"],
            name=method["method"],
            mode="lines",
            line={"color": color, "width": 2, "dash": "dash" if method["method"] == "source" else "solid"},
            hovertemplate=f"{escape(method['method'])}: %{{y:.1f}} % up to image %{{x}}<extra></extra>",
        )
        _draw_events(chart, row, method, color)
    for phase in row["phases"]:
        chart.add_vline(x=phase["first"], line={"color": GREY, "width": 1, "dash": "dot"})
        chart.add_annotation(
            x=phase["first"], y=1, yref="paper", text=escape(phase["name"].replace("_", " ")), showarrow=False,
            textangle=-90, xanchor="left", yanchor="top", font={"size": 10, "color": GREY},
        )  # fmt: skip
    return chart


def _draw_events(chart: go.Figure, row: Row, method: Row, color: str) -> None:
    errors, size = method["window_error_percent"], row["window_images"]
    for kind, symbol in SYMBOLS.items():
        events = [event for event in method["events"] if event["kind"] == kind]
        if events:
            chart.add_scatter(
                x=[event["image"] for event in events],
                y=[errors[min(event["image"] // size, len(errors) - 1)] for event in events],
                name=f"{method['method']}: {kind}",
                mode="markers",
                marker={"symbol": symbol, "size": 9, "color": color, "line": {"width": 1, "color": GREY}},
                text=[escape(event["reason"]) for event in events],
                hovertemplate=f"{kind} at image %{{x}}: %{{text}}<extra></extra>",
            )


def streams(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The content of each `stream.json`; each method also has its share of the source's error, and its events, as texts."""
    rows = []
    for folder in folders:
        found = StreamedNetwork.read(folder / STREAM_FILE)
        row = found.to_json()
        for method, one in zip(row["methods"], found.methods, strict=True):
            method |= {"of_source": share_text(one, found), "events_text": events_text(one)}
        rows.append(row)
    return rows


def card(row: Row) -> list[Row]:
    """The method with the least error on a stream, against the source; empty without a source, or without another method."""
    errors = row["errors_percent"]
    others = {method: error for method, error in errors.items() if method != "source"}
    if "source" not in errors or not others:
        return []
    best = min(others, key=lambda method: others[method])
    note = f"{best}; as it is {errors['source']:.1f} %; {row['images']} images"
    label = f"{row['title']}: error on a {row['settings']['stream']} stream"
    return [card_of(label, f"{others[best]:.1f} %", note)]

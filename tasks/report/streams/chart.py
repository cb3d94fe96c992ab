"""The figure of a SubNet on a stream."""

import itertools
from html import escape

import plotly.graph_objects as go

from tasks.report.charts import COLORS, blank
from tasks.report.looks import GREY, Row

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
    others = itertools.cycle(COLORS)
    for method in row["methods"]:
        color = GREY if method["method"] == "source" else next(others)
        chart.add_scatter(
            x=_ends(row),
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


def _ends(row: Row) -> list[int]:
    """The number of images after each window."""
    size, images = row["window_images"], row["images"]
    return [min(first + size, images) for first in range(0, images, size)]


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

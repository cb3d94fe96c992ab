"""The figures of the report. Every text from the user is escaped: plotly reads a subset of HTML in labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tailor_ir import choice_text
from tasks.base.pages.text import milliseconds, percent
from tasks.report import baselines
from tasks.report.parts import BLUE, GOLD, GREEN, GREY, ORANGE, PINK, PURPLE, RED, TURQUOISE, Row, point_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, TURQUOISE, GOLD, PINK)
CHOSEN = "chosen"
"""Trace that the page's script moves to the SubNet whose layers are shown."""
MAX_BARS = 40
LOG_TICKS = [float(f"{digit}e{exponent}") for exponent in range(-4, 6) for digit in (1, 2, 5)]
SQUARES = ("square", "square-open", "diamond-open")

Rows = Sequence[Row]
_Group = tuple[str, Rows, str]
"""Name, rows and colour of points of a figure."""


def blank(x: str, y: str, height: int = 430) -> go.Figure:
    """A figure with the titles of its axes, in the style of the report."""
    import plotly.graph_objects as go  # plotly takes a second

    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left", "bgcolor": "#22262d", "font": {"color": "#f2f3f5"}, "bordercolor": "#22262d"},
        hovermode="closest",
    )
    figure.update_xaxes(title=x, zeroline=False, automargin=True)
    figure.update_yaxes(title=y, zeroline=False, automargin=True)
    return figure


def _hover(row: Row, device: Row, *title: str) -> str:
    """Title lines, then the SubNet's architecture, a line for each stage."""
    return point_label(title[0], title[1:], device["breakdown"]["subnets"][row["digest"]]["architecture"])


def _point_text(name: str, row: Row, device: Row) -> str:
    found = [f"measured {milliseconds(row['measured_ms'])}, {device['score']} {percent(row['accuracy'])}"]
    if row.get("predicted_ms") is not None:
        accuracy = percent(row.get("predicted_accuracy"))
        found.append(f"predicted {milliseconds(row['predicted_ms'])}, {device['score']} {accuracy}")
    if row.get("budget_ms") is not None:
        found.insert(0, f"budget {milliseconds(row['budget_ms'])}")
    return _hover(row, device, name, *found)


def fronts(devices: Rows) -> go.Figure:
    """The measured fronts of all devices, one colour each; stars are the base model."""
    figure = blank("measured latency [ms]", f"test {devices[0]['score']} [%]", height=400)
    figure.update_xaxes(type="log", tickvals=LOG_TICKS, ticktext=[f"{tick:g}" for tick in LOG_TICKS])
    for device, color in zip(devices, itertools.cycle(COLORS)):
        winners = list({row["digest"]: row for row in device["winners"] if row["on_front"]}.values())
        _scatter(figure, device["name"], winners, device, {"color": color, "size": 9}, "lines+markers")
        star: Row = {"color": color, "size": 15, "symbol": "star"}
        _scatter(figure, f"{device['name']}, {device['base']['name']}", [device["base"]], device, star, "markers")
    return figure


def front(device: Row) -> go.Figure:
    """Measured latency against measured accuracy: winners, base model, uniformly shrunk and random SubNets, baselines."""
    score = device["score"]
    figure = blank("measured latency [ms]", f"{score} [%]", height=480)
    random = [row for row in device["random"] if row["kind"] == "random"]
    style: Row = {"color": GREY, "size": 6, "opacity": 0.6}
    _scatter(figure, f"random SubNets (validation {score})", random, device, style, "markers")
    for symbol, scaled in zip(SQUARES, dict.fromkeys(row["scaled"] for row in device["baseline"]), strict=False):
        rows = [row for row in device["baseline"] if row["scaled"] == scaled]
        style = {"color": ORANGE, "size": 8, "symbol": symbol}
        _scatter(figure, f"uniformly shrunk: {scaled}", rows, device, style, "lines+markers", "dot")
    baselines.draw(figure, device)
    if device["whole_front"] is not None:
        _whole_front(figure, device["whole_front"], score)
    winners = list({row["digest"]: row for row in device["winners"]}.values())
    on_front = [row for row in winners if row["on_front"]]
    _scatter(figure, "winners", on_front, device, {"color": BLUE, "size": 9}, "lines+markers")
    dominated = [row for row in winners if not row["on_front"]]
    style = {"color": BLUE, "size": 8, "symbol": "circle-open"}
    _scatter(figure, "winners, dominated as measured", dominated, device, style, "markers")
    missed = [row for row in device["winners"] if row["within_budget"] is False]
    style = {"color": RED, "size": 15, "symbol": "circle-open", "line": {"width": 2}}
    _scatter(figure, "misses its budget", missed, device, style, "markers")
    style = {"color": GREEN, "size": 15, "symbol": "star"}
    _scatter(figure, device["base"]["name"], [device["base"]], device, style, "markers")
    figure.add_scatter(
        x=[], y=[], name=CHOSEN, mode="markers", showlegend=False, hoverinfo="skip",
        marker={"color": PURPLE, "size": 20, "symbol": "circle-open", "line": {"width": 3}},
    )  # fmt: skip
    return figure


def _whole_front(figure: go.Figure, whole: Row, score: str) -> None:
    """Draw the predicted Pareto front of the complete space."""
    figure.add_scatter(
        x=whole["predicted_ms"],
        y=[100 * accuracy for accuracy in whole["predicted_accuracy"]],
        name=f"whole front, predicted (validation {score}): {len(whole['predicted_ms'])} SubNets",
        mode="lines",
        line={"color": GREY, "width": 1, "shape": "hv"},
        hovertemplate="predicted %{x:.4g} ms, %{y:.2f} %<extra></extra>",
    )


def _scatter(
    figure: go.Figure, name: str, rows: Rows, device: Row, marker: Row, mode: str, dash: str | None = None
) -> None:
    rows = sorted(
        (r for r in rows if r.get("measured_ms") and r.get("accuracy") is not None), key=lambda r: r["measured_ms"]
    )
    if rows:
        figure.add_scatter(
            x=[row["measured_ms"] for row in rows],
            y=[100 * row["accuracy"] for row in rows],
            name=escape(name),
            mode=mode,
            marker=marker,
            line={"dash": dash, "width": 2, "color": marker["color"]},
            customdata=[row["digest"] for row in rows],
            meta=device["name"],
            text=[_point_text(name, row, device) for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )


def latency_errors(device: Row) -> go.Figure:
    """Predicted against measured latency; on the dashed line they are equal."""
    figure = blank("predicted latency [ms]", "measured latency [ms]", height=400)
    fitted = [row for row in device["random"] if row["used_for"] == "fit"]
    groups = (
        ("held-out SubNets", [row for row in device["random"] if row not in fitted], GREY),
        ("SubNets of the fit", fitted, PURPLE),
        ("winners", device["winners"], BLUE),
        ("uniformly shrunk", device["baseline"], ORANGE),
    )
    shown = list(itertools.chain(*(_pairs(figure, device, group, _LATENCIES) for group in groups)))
    _diagonal(figure, 0.0, max(shown, default=0.0))
    return figure


def accuracy_errors(device: Row) -> go.Figure:
    """Predicted against measured accuracy; predictions, and random SubNets' measurements, are of the validation split."""
    score = device["score"]
    figure = blank(f"predicted {score} [%]", f"measured {score} [%]", height=400)
    groups = (
        ("random SubNets (validation)", device["random"], GREY),
        ("winners (test)", device["winners"], BLUE),
        ("uniformly shrunk (test)", device["baseline"], ORANGE),
    )
    shown = list(itertools.chain(*(_pairs(figure, device, group, _ACCURACIES) for group in groups)))
    _diagonal(figure, min(shown, default=0.0), max(shown, default=100.0))
    return figure


def _pairs(figure: go.Figure, device: Row, group: _Group, values: _PredictedValues) -> list[float]:
    """Add points of a predicted and a measured value of each row, if both are known; all these values."""
    (name, rows, color), keys = group, (values.predicted, values.measured)
    known = [row for row in rows if all(row.get(key) is not None for key in keys)]
    x, y = ([values.scale * row[key] for row in known] for key in keys)
    if known:
        figure.add_scatter(
            x=x,
            y=y,
            name=name,
            mode="markers",
            marker={"color": color, "size": 8, "opacity": 0.85},
            customdata=[row["digest"] for row in known],
            text=[_hover(row, device, name, values.text(a, b)) for row, a, b in zip(known, x, y, strict=True)],
            hovertemplate="%{text}<extra></extra>",
        )
    return [*x, *y]


def _diagonal(figure: go.Figure, lowest: float, highest: float) -> None:
    figure.add_scatter(
        x=[lowest, highest], y=[lowest, highest], name="equal", mode="lines", hoverinfo="skip",
        line={"color": GREY, "dash": "dash", "width": 1},
    )  # fmt: skip


def _latency_error(predicted_ms: float, measured_ms: float) -> str:
    error = 100 * (predicted_ms / measured_ms - 1)
    return f"predicted {milliseconds(predicted_ms)}, measured {milliseconds(measured_ms)}: {error:+.1f} %"


def _accuracy_error(predicted: float, measured: float) -> str:
    error = predicted - measured
    return f"predicted {percent(predicted / 100)}, measured {percent(measured / 100)}: {error:+.1f} points"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PredictedValues:
    """A predicted and a measured value, by their keys in a row. scale: factor to the unit of the axes.

    text: of the error, from both values in the unit of the axes.
    """

    predicted: str
    measured: str
    scale: float
    text: Callable[[float, float], str]


_LATENCIES = _PredictedValues(predicted="predicted_ms", measured="measured_ms", scale=1, text=_latency_error)
_ACCURACIES = _PredictedValues(predicted="predicted_accuracy", measured="accuracy", scale=100, text=_accuracy_error)


def sensitivities(rows: Rows, score: str) -> go.Figure:
    """Change of the score by each modification, in points, with its standard error; the largest ones."""
    shown = sorted(rows, key=lambda row: -abs(row["delta_points"]))[:MAX_BARS]
    shown = [row for row in rows if row in shown][::-1]
    figure = blank(f"change of validation {score} [points]", "", height=120 + 19 * len(shown))
    figure.add_bar(
        x=[row["delta_points"] for row in shown],
        y=[escape(f"{row['variable']} = {choice_text(row['choice'])}") for row in shown],
        orientation="h",
        marker={"color": [RED if row["delta_points"] < 0 else GREEN for row in shown]},
        error_x={
            "type": "data",
            "array": [row["standard_error_points"] for row in shown],
            "color": GREY,
            "thickness": 1,
        },
        customdata=[[row["standard_error_points"], row["delta_loss"]] for row in shown],
        hovertemplate="%{y}<br>%{x:.2f} ± %{customdata[0]:.2f} points, loss %{customdata[1]:+.4f}<extra></extra>",
    )
    figure.update_yaxes(dtick=1, tickfont={"size": 11})
    return figure


def durations(rows: Rows) -> go.Figure:
    """Wall time of each stage, in the order of execution."""
    figure = blank("seconds", "", height=90 + 26 * len(rows))
    figure.add_bar(
        x=[row["seconds"] for row in rows][::-1],
        y=[escape(row["stage"]) for row in rows][::-1],
        orientation="h",
        marker={"color": [GREY if row["cached"] else BLUE for row in rows][::-1]},
        text=["from the store" if row["cached"] else f"{row['seconds']:.1f} s" for row in rows][::-1],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
    )
    return figure


def candidates(device: Row) -> go.Figure:
    """The refinement's candidates by measured latency and accuracy; a line leads from a replaced winner to the new one."""
    figure = blank("measured latency [ms]", f"validation {device['score']} [%]", height=400)
    rows = [row for row in device["refinement"]["candidates"] if row["measured_accuracy"] is not None]
    replaced = device["refinement"]["replaced_winners"]
    chosen = {row["digest"] for row in device["winners"]}
    before = {row["before"]["digest"] for row in replaced}
    for row in replaced:
        if row["before"]["measured_accuracy"] is not None:
            _measured(figure, "replaced by", [row["before"], row["after"]], {"size": 1, "color": ORANGE}, "lines")
    styles: list[tuple[str, Callable[[str], bool], Row]] = [
        ("candidates", lambda digest: True, {"color": GREY, "size": 7, "opacity": 0.7}),
        ("winners of the search, replaced", lambda digest: digest in before, {"color": ORANGE, "size": 10}),
        ("winners", lambda digest: digest in chosen, {"color": BLUE, "size": 9}),
    ]
    for name, taken, marker in styles:
        _measured(figure, name, [row for row in rows if taken(row["digest"])], marker, "markers")
    return figure


def _measured(figure: go.Figure, name: str, rows: Rows, marker: Row, mode: str) -> None:
    if rows:
        figure.add_scatter(
            x=[row["measured_ms"] for row in rows],
            y=[100 * row["measured_accuracy"] for row in rows],
            name=name,
            mode=mode,
            marker=marker,
            line={"color": marker["color"], "width": 1.5, "dash": "dot"},
            showlegend=mode == "markers",
            hoverinfo="skip" if mode == "lines" else None,
            hovertemplate=None if mode == "lines" else "%{text}<extra></extra>",
            text=[_candidate_text(name, row) for row in rows],
        )


def _candidate_text(name: str, row: Row) -> str:
    found = (
        _latency_error(row["predicted_ms"], row["measured_ms"]),
        _accuracy_error(100 * row["predicted_accuracy"], 100 * row["measured_accuracy"]),
    )
    return point_label(name, [row["digest"][:8], *found], ())

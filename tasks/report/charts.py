"""The figures of the report. Every text of the user's is escaped: plotly reads a subset of HTML in labels."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from tasks.pages.text import milliseconds, percent
from tasks.report.text import architecture

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#4c7fd9", "#e0823d", "#3f9f6b", "#d6504b", "#8d6cc9", "#8c929b"
MAX_BARS = 40
MAX_POINTS = 1000
SQUARES = ("square", "square-open", "diamond-open")

Row = Mapping[str, Any]
Rows = Sequence[Row]


def _figure(x: str, y: str, height: int = 430) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={
            "align": "left",
            "bgcolor": "#22262d",
            "font": {"color": "#f2f3f5"},
            "bordercolor": "#22262d",
        },
        hovermode="closest",
    )
    figure.update_xaxes(title=x, zeroline=False, automargin=True)
    figure.update_yaxes(title=y, zeroline=False, automargin=True)
    return figure


def _hover(row: Row, variables: Rows, *title: str) -> str:
    lines = [f"<b>{escape(title[0])}</b>", *map(escape, title[1:])]
    if row.get("config"):
        lines += ["", *map(escape, architecture(row["config"], variables) or ["largest SubNet"])]
    return "<br>".join(lines)


def _point_text(name: str, row: Row, variables: Rows) -> str:
    found = [f"measured {milliseconds(row['measured_ms'])}, accuracy {percent(row['accuracy'])}"]
    if row.get("predicted_ms") is not None:
        accuracy = percent(row.get("predicted_accuracy"))
        found.append(f"predicted {milliseconds(row['predicted_ms'])}, accuracy {accuracy}")
    if row.get("budget_ms") is not None:
        found.insert(0, f"budget {milliseconds(row['budget_ms'])}")
    return _hover(row, variables, name, *found)


def front(device: Row, variables: Rows) -> go.Figure:
    """Measured latency against measured accuracy: winners, base model, uniformly shrunk and random SubNets."""
    figure = _figure("measured latency [ms]", "accuracy [%]", height=480)
    random = [row for row in device["random"] if row["kind"] == "random"]
    style: Row = {"color": GREY, "size": 6, "opacity": 0.6}
    _scatter(figure, "random SubNets (validation accuracy)", random, variables, style, "markers")
    for symbol, scaled in zip(SQUARES, dict.fromkeys(row["scaled"] for row in device["baseline"]), strict=False):
        rows = [row for row in device["baseline"] if row["scaled"] == scaled]
        style = {"color": ORANGE, "size": 8, "symbol": symbol}
        _scatter(figure, f"uniformly shrunk: {scaled}", rows, variables, style, "lines+markers", "dot")
    winners = list({row["digest"]: row for row in device["winners"]}.values())
    on_front = [row for row in winners if row["on_front"]]
    _scatter(figure, "winners", on_front, variables, {"color": BLUE, "size": 9}, "lines+markers")
    dominated = [row for row in winners if not row["on_front"]]
    style = {"color": BLUE, "size": 8, "symbol": "circle-open"}
    _scatter(figure, "winners, dominated as measured", dominated, variables, style, "markers")
    missed = [row for row in device["winners"] if row["within_budget"] is False]
    style = {"color": RED, "size": 15, "symbol": "circle-open", "line": {"width": 2}}
    _scatter(figure, "misses its budget", missed, variables, style, "markers")
    style = {"color": GREEN, "size": 15, "symbol": "star"}
    _scatter(figure, "base model", [device["base"]], variables, style, "markers")
    return figure


def _scatter(
    figure: go.Figure, name: str, rows: Rows, variables: Rows, marker: Row, mode: str, dash: str | None = None
) -> None:
    rows = sorted(
        (r for r in rows if r.get("measured_ms") and r.get("accuracy") is not None),
        key=lambda r: r["measured_ms"],
    )
    if rows:
        figure.add_scatter(
            x=[row["measured_ms"] for row in rows],
            y=[100 * row["accuracy"] for row in rows],
            name=escape(name),
            mode=mode,
            marker=marker,
            line={"dash": dash, "width": 2, "color": marker["color"]},
            text=[_point_text(name, row, variables) for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )


def latency_errors(device: Row, variables: Rows) -> go.Figure:
    """Predicted against measured latency; on the dashed line they are equal."""
    figure = _figure("predicted latency [ms]", "measured latency [ms]", height=400)
    fitted = [row for row in device["random"] if row["used_for"] == "fit"]
    groups = (
        ("held-out SubNets", [row for row in device["random"] if row not in fitted], GREY),
        ("SubNets of the fit", fitted, PURPLE),
        ("winners", device["winners"], BLUE),
        ("uniformly shrunk", device["baseline"], ORANGE),
    )
    largest_ms = 0.0
    for name, rows, color in groups:
        known = [row for row in rows if row.get("predicted_ms") and row.get("measured_ms")]
        if not known:
            continue
        figure.add_scatter(
            x=[row["predicted_ms"] for row in known],
            y=[row["measured_ms"] for row in known],
            name=name,
            mode="markers",
            marker={"color": color, "size": 8, "opacity": 0.85},
            text=[_hover(row, variables, name, _error_text(row)) for row in known],
            hovertemplate="%{text}<extra></extra>",
        )
        largest_ms = max(largest_ms, *(row[key] for row in known for key in ("predicted_ms", "measured_ms")))
    figure.add_scatter(
        x=[0, largest_ms], y=[0, largest_ms], name="equal", mode="lines", hoverinfo="skip",
        line={"color": GREY, "dash": "dash", "width": 1},
    )  # fmt: skip
    return figure


def _error_text(row: Row) -> str:
    error = 100 * (row["predicted_ms"] / row["measured_ms"] - 1)
    times = f"predicted {milliseconds(row['predicted_ms'])}, measured {milliseconds(row['measured_ms'])}"
    return f"{times}: {error:+.1f} %"


def sensitivities(rows: Rows) -> go.Figure:
    """Change of accuracy by each modification, in points, with its standard error; the largest ones."""
    shown = sorted(rows, key=lambda row: -abs(row["delta_points"]))[:MAX_BARS]
    shown = [row for row in rows if row in shown][::-1]
    figure = _figure("change of validation accuracy [points]", "", height=120 + 19 * len(shown))
    figure.add_bar(
        x=[row["delta_points"] for row in shown],
        y=[escape(f"{row['variable']} = {row['choice']:g}") for row in shown],
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


def training(rows: Rows) -> go.Figure:
    """Loss over steps (left) and accuracy where it was logged (right); at most 1,000 points a curve."""
    figure = _figure("step", "loss", height=340)
    names = [name for name in rows[-1] if name == "loss" or name.startswith("loss_")]
    thinned = rows[:: max(1, len(rows) // MAX_POINTS)]
    steps = [row["step"] for row in thinned]
    for name, color in zip(names, (BLUE, GREEN, ORANGE, PURPLE, RED), strict=False):
        label = name.removeprefix("loss_").replace("_", " ")
        figure.add_scatter(x=steps, y=[row.get(name) for row in thinned], name=escape(label), mode="lines",
                           line={"color": color, "width": 1.5})  # fmt: skip
    accuracy = [row for row in rows if row.get("accuracy") is not None]
    if accuracy:
        figure.add_scatter(x=[row["step"] for row in accuracy], y=[100 * row["accuracy"] for row in accuracy],
                           name="accuracy", yaxis="y2", line={"color": GREY, "dash": "dot"})  # fmt: skip
        figure.update_layout(yaxis2={"overlaying": "y", "side": "right", "title": "accuracy [%]", "showgrid": False})
    return figure


def durations(rows: Rows) -> go.Figure:
    """Wall time of each stage, in the order they ran."""
    figure = _figure("seconds", "", height=90 + 26 * len(rows))
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

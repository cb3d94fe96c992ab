"""The figures of leaving early."""

from html import escape
from itertools import accumulate

import plotly.graph_objects as go

from tasks.report.charts import blank
from tasks.report.looks import BLUE, GREEN, GREY, ORANGE, Row


def shares(subnet: Row) -> go.Figure:
    """Share of test samples that leave at each exit, with their accuracy, and the accuracy of all samples at this exit."""
    figure = blank("", "samples [%]", height=320)
    exits = subnet["exits"]
    names = [escape(one["exit"]) for one in exits]
    figure.add_bar(x=names, y=[100 * one["share"] for one in exits], name="leave there", marker={"color": BLUE})
    for key, name, color in (("share_accuracy", "accuracy of those", GREEN), ("accuracy", "accuracy of all", ORANGE)):
        values = [one["accuracy"]["test"] if key == "accuracy" else one[key] for one in exits]
        figure.add_scatter(
            x=names,
            y=[None if value is None else 100 * value for value in values],
            name=name,
            mode="lines+markers",
            yaxis="y2",
            line={"color": color, "width": 2},
        )
    axis = {"overlaying": "y", "side": "right", "title": "test accuracy [%]", "showgrid": False, "zeroline": False}
    figure.update_layout(yaxis2=axis, margin={"r": 70})
    return figure


def latencies(subnet: Row) -> go.Figure:
    """The distribution of the latency of test samples, and the latency of the SubNet without exits."""
    figure = blank("latency [ms]", "samples that have their answer [%]", height=320)
    rows = sorted((one["latency_ms"], one["share"], one["exit"]) for one in subnet["exits"] if one["share"])
    answered = [100 * share for share in accumulate(share for _, share, _ in rows)]
    figure.add_scatter(
        x=[0.0, *(latency_ms for latency_ms, _, _ in rows)],
        y=[0.0, *answered],
        text=["", *(escape(name) for _, _, name in rows)],
        name="with exits",
        mode="lines+markers",
        line={"color": BLUE, "width": 2, "shape": "hv"},
        hovertemplate="%{text}: %{y:.1f} % within %{x:.4g} ms<extra></extra>",
    )
    tested = subnet["tested"]
    for name, at_ms, color in (
        ("mean", tested["expected_ms"], GREEN),
        ("p99", tested["p99_ms"], ORANGE),
        ("without exits", tested["whole_ms"], GREY),
    ):
        figure.add_scatter(
            x=[at_ms, at_ms],
            y=[0, 100],
            name=f"{name}: {at_ms:.4g} ms",
            mode="lines",
            line={"color": color, "dash": "dash", "width": 1.5},
            hoverinfo="skip",
        )
    return figure

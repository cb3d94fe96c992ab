"""The figure of a confusion matrix: classes in rows, answers in columns."""

from html import escape

import plotly.graph_objects as go

from tasks.report.charts import blank
from tasks.report.confusions.found import ReportedConfusions
from tasks.report.looks import BLUE

CLEAR = "rgba(128,128,128,.06)"
MOST_NUMBERS = 16
"""Largest number of classes for which squares show numbers."""


def figure(found: ReportedConfusions) -> go.Figure:
    """The figure: a square's colour is the share of its class with this answer; its number is the count of these samples."""
    names = [escape(name) for name in found["classes"]]
    shares = [[100 * count / max(1, sum(row)) for count in row] for row in found["confusion"]]
    chart = blank("answer", "class", height=160 + 24 * len(names))
    chart.add_heatmap(
        z=shares,
        x=names,
        y=names,
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        colorscale=[[0.0, CLEAR], [1.0, BLUE]],
        colorbar={"title": "% of class", "thickness": 12},
        customdata=found["confusion"],
        text=[[str(count or "") for count in row] for row in found["confusion"]],
        texttemplate="%{text}" if len(names) <= MOST_NUMBERS else None,
        hovertemplate="%{y} taken for %{x}: %{customdata} samples, %{z:.1f} %<extra></extra>",
    )
    chart.update_xaxes(type="category", showgrid=False)
    chart.update_yaxes(type="category", showgrid=False, autorange="reversed")
    return chart

"""Confusion matrices of the base network and of a chosen winner of each device: data and figures of the report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.evaluation.subnets.record import BASE, CONFUSIONS_FILE, Confusions, read_confusions
from tasks.report.charts import blank
from tasks.report.headline import fastest_within, reference
from tasks.report.parts import BLUE, Row
from tasks.report.sources import DeviceSources

if TYPE_CHECKING:
    import plotly.graph_objects as go


def confusions(report: Row, base: Path | None, devices: Sequence[DeviceSources], points: float) -> list[Row]:
    """Matrices of the base network, and of a winner of each device: the headline's winner, or else the most accurate one.

    report: everything except the matrices. base: the folder with the base network's file. Networks without a matrix are left
    out. device: where a winner was chosen, "" for the base network. confusion: by class and answer.
    """
    found = [] if base is None else _shown(read_confusions(base / CONFUSIONS_FILE).get(BASE), "", "base model")
    accuracy = reference(report)[1]
    for row, sources in zip(report["devices"], devices, strict=True):
        known = [one for one in row["winners"] if one["accuracy"] is not None]
        fastest = None if accuracy is None else fastest_within(row, accuracy, points)
        winner = fastest or max(known, key=lambda one: float(one["accuracy"]), default=None)
        if winner is not None:
            line = read_confusions(sources.export / CONFUSIONS_FILE).get(winner["digest"])
            found += _shown(line, row["name"], f"{row['name']}: winner {winner['digest'][:8]}")
    return found


def _shown(line: Confusions | None, device: str, title: str) -> list[Row]:
    if line is None:
        return []
    return [{"device": device, "title": title, "classes": line["classes"], "confusion": line["confusion"]}]


CLEAR = "rgba(128,128,128,.06)"
MOST_NUMBERS = 16
"""Largest number of classes for which squares show numbers."""


def figure(found: Row) -> go.Figure:
    """The figure, classes in rows, answers in columns.

    A square's colour is the share of its class with this answer, its number the count of these samples.
    """
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

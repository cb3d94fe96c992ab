"""Leaving early at exits: policies as data, as figures, and as a card of the headline; images that leave first and last."""

from __future__ import annotations

from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.base.pages.text import milliseconds, percent
from tasks.exits.policies import POLICIES_FILE, Policies, SubnetPolicy
from tasks.report.charts import blank
from tasks.report.parts import BLUE, GREEN, GREY, ORANGE, Row, card_of, png

if TYPE_CHECKING:
    import plotly.graph_objects as go


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


SHOWN_CLASSES = 5
"""Number of classes shown at each end."""


def policies(folder: Path | None) -> Row | None:
    """Content of the folder with `policies.json`, with pictures inside; None if the space has no exits.
    best: digest of the SubNet that is shown in detail. slow_classes: the classes that leave last, the last one first.
    """
    if folder is None:
        return None
    found = Policies.read(folder / POLICIES_FILE)
    rows = [_subnet(row, folder) for row in found.subnets]
    best = found.best
    return {
        **found.model_dump(mode="json", exclude={"version", "subnets"}),
        "subnets": rows,
        "best": None if best is None else best.digest,
    }


def _subnet(row: SubnetPolicy, folder: Path) -> Row:
    tested = row.tested
    return {
        **row.model_dump(mode="json", exclude={"earliest", "latest", "classes"}),
        "lost_points": None if tested is None else tested.lost_points,
        "classes": [one.to_json() for one in row.classes],
        "fast_classes": [one.name for one in row.classes[:SHOWN_CLASSES]],
        "slow_classes": [one.name for one in row.classes[::-1][:SHOWN_CLASSES]],
        **{
            end: [
                {**one.model_dump(mode="json", exclude={"file"}), "png": png(folder / one.file)}
                for one in getattr(row, end)
            ]
            for end in ("earliest", "latest")
        },
    }


def card(device: Row) -> list[Row]:
    """The saving by leaving early, in a line; the reason if nothing is saved."""
    found = device["policies"]
    if found is None:
        return []
    label, name = f"{device['name']}: leaving early", device["name"]
    best = next((row for row in found["subnets"] if row["digest"] == found["best"]), None)
    if best is None:
        reasons = [found["reason"], *(row["reason"] for row in found["subnets"])]
        note = next((reason for reason in reasons if reason is not None), "no SubNet with all exits was chosen")
        return [card_of(label, "–", note, name)]
    tested = best["tested"]
    note = (
        f"{milliseconds(tested['expected_ms'])} on average instead of {milliseconds(tested['whole_ms'])}, p99 "
        f"{milliseconds(tested['p99_ms'])}; {best['lost_points']:.2f} points lost on test images, at most "
        f"{100 * found['epsilon']:g} promised with {percent(found['confidence'])}"
    )
    sign = "−" if tested["saved"] >= 0 else "+"
    return [card_of(label, f"{sign}{percent(abs(tested['saved']))}", note, name)]

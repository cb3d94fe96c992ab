"""The winners of one device against the baselines: as data, as points of the front's chart, as a card, in the terminal."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape as escape_markup
from rich.table import Column, Table

from tasks.base.pages.text import amount, milliseconds, percent
from tasks.base.schemas.winners import COMPARED_FILE, Compared
from tasks.report.parts import GOLD, GREY, PURPLE, RED, TURQUOISE, Row, card_of, point_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tasks.prediction.layers import Layers

TITLES = {"uniform": "uniformly shrunk", "random": "random SubNets", "macs": "searched by MACs", "siblings": "siblings"}
STYLES = ((GOLD, "square-open"), (GREY, "x-thin-open"), (PURPLE, "triangle-up"), (RED, "diamond"))
OTHERS = (TURQUOISE, "star-triangle-up")
SHOWN = {
    "points": "networks",
    "above": "above at",
    "not_below": "not below at",
    "hypervolume": "hypervolume",
    "accuracy": "at equal latency",
    "latency": "at equal accuracy",
}
"""Heads of tables in the terminal, by the keys of `cells`."""


def title(name: str) -> str:
    """The title of a baseline."""
    return TITLES.get(name, name)


def against(folder: Path | None, layers: Layers) -> Row | None:
    """The result of the stage `compared`, with the architecture of each SubNet; None without baselines."""
    if folder is None:
        return None
    found = Compared.read(folder / COMPARED_FILE).to_json()
    for row in found["rows"]:
        row["architecture"] = layers.architecture(row["config"]) if row["network"] is None else []
    return found


def draw(figure: go.Figure, device: Row) -> None:
    """Every measured network of each baseline, with its test accuracy."""
    if not device["baselines"]:
        return
    own = dict(zip(TITLES, STYLES, strict=True))
    for name in device["baselines"]["baselines"]:
        color, symbol = own.get(name, OTHERS)
        rows = [
            row for row in device["baselines"]["rows"] if row["baseline"] == name and row["measured_ms"] is not None
        ]
        figure.add_scatter(
            x=[row["measured_ms"] for row in rows],
            y=[100 * row["accuracy"]["test"] for row in rows],
            name=escape(f"baseline: {title(name)}"),
            mode="markers",
            marker={"color": color, "size": 8, "symbol": symbol, "line": {"width": 1.5, "color": color}},
            customdata=[row["digest"] for row in rows],
            meta=device["name"],
            text=[_text(row, device["score"]) for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )


def _text(row: Row, score: str) -> str:
    facts = [
        *([] if row["network"] is None else [row["name"]]),
        f"measured {milliseconds(row['measured_ms'])}, {score} {percent(row['accuracy']['test'])}",
        f"{amount(row['macs'])} MACs, {amount(row['parameters'])} parameters",
    ]
    return point_label(title(row["baseline"]), facts, row["architecture"])


def cards(device: Row) -> list[Row]:
    """The share of budgets at which winners are above every baseline, and their gain over the strongest one."""
    found = device["baselines"]
    if not found:
        return []

    def strength(name: str) -> float:
        """Smaller for a stronger baseline; infinite if it has no hypervolume."""
        ratio: float | None = found["baselines"][name]["hypervolume_ratio"]
        return math.inf if ratio is None else ratio

    name = min(found["baselines"], key=strength)
    row = cells(found["baselines"][name])
    note = (
        f"of {len(found['budgets'])} budgets; against the strongest ({title(name)}): hypervolume {row['hypervolume']}, "
        f"{row['accuracy']} at equal latency, latency {row['latency']} at equal {device['score']}"
    )
    return [card_of(f"{device['name']}: above every baseline", percent(found["above_every"]), note, device["name"])]


def cells(row: Row) -> dict[str, str]:
    """The numbers of one baseline as text."""
    gain, ratio, faster = row["accuracy_gain_points"], row["hypervolume_ratio"], row["latency_gain"]
    return {
        "points": str(row["points"]),
        "above": percent(row["above"]),
        "not_below": percent(row["not_below"]),
        "hypervolume": "–" if ratio is None else f"{ratio:.3f} ×",
        "accuracy": "–" if gain is None else f"{gain:+.2f} points",
        "latency": "–" if faster is None else f"{1 / faster:.3f} ×",
        "not_reached": str(row["not_reached"]),
    }


def tables(device: Row) -> list[Table]:
    """A table with a row for each baseline."""
    found = device["baselines"]
    if not found:
        return []
    within = percent(found["within_budget"])
    columns = (Column(head, justify="right") for head in SHOWN.values())
    table = Table("baseline", *columns, title=escape_markup(f"{device['name']}: winners against baselines"))
    table.caption = (
        f"above every baseline at {percent(found['above_every'])} of {len(found['budgets'])} budgets; "
        f"timed again, {within} of the winners keep their budget"
    )
    for name, row in found["baselines"].items():
        text = cells(row)
        table.add_row(escape_markup(title(name)), *(text[key] for key in SHOWN))
    return [table]

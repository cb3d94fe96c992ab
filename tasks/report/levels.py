"""Levels of a device, as data and as a figure: SubNets, exits and formats, and the combinations that some state prefers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas.winners import LEVELS_FILE, LevelRow, Levels
from tasks.report.charts import COLORS, LOG_TICKS, blank
from tasks.report.parts import Row, point_label

if TYPE_CHECKING:
    import plotly.graph_objects as go


def figure(found: Row) -> go.Figure:
    """Accuracy against latency, a colour for each format; filled: combinations that some state of the device prefers."""
    figure = blank("latency [ms]", "accuracy [%]", height=420)
    figure.update_xaxes(type="log", tickvals=LOG_TICKS, ticktext=[f"{tick:g}" for tick in LOG_TICKS])
    for at, form in enumerate(found["formats"]):
        rows = [row for row in found["rows"] if row["format"] == form]
        figure.add_scatter(
            x=[row["latency_ms"] for row in rows],
            y=[100 * row["accuracy"] for row in rows],
            error_x={"array": [row["latency_ms"] * row["latency_error"] for row in rows], "thickness": 0.7},
            error_y={"array": [100 * row["accuracy_error"] for row in rows], "thickness": 0.7},
            mode="markers",
            name=form,
            marker={
                "color": COLORS[at % len(COLORS)],
                "size": 9,
                "symbol": ["circle" if row["kept"] else "circle-open" for row in rows],
            },
            text=[_text(row) for row in rows],
            hovertemplate="%{text}<extra></extra>",
        )
    return figure


def _text(row: Row) -> str:
    facts = [f"{milliseconds(row['latency_ms'])}, accuracy {percent(row['accuracy'])}", f"{row['memory_mib']:.3g} MiB"]
    if row["energy_mj"] is not None:
        facts.append(f"{row['energy_mj']:.3g} mJ")
    return point_label(f"{row['digest'][:8]} in {row['format']}, {row['answers']}", facts, ())


def levels(folder: Path | None) -> Row | None:
    """Content of the folder with `levels.json`; None if the device stands for itself alone. shown: the preferred rows."""
    if folder is None:
        return None
    found = Levels.read(folder / LEVELS_FILE)
    rows = [_row(row) for row in found.rows]
    return {
        "formats": list(found.formats),
        "energy_from": found.energy_from,
        "rows": rows,
        "shown": sorted((row for row in rows if row["kept"]), key=lambda row: -row["accuracy"]),
        "on_front": sum(row.on_front for row in found.rows),
        "left_out": [one.to_json() for one in found.left_out],
    }


def _row(row: LevelRow) -> Row:
    answers = "by thresholds" if row.early else "whole" if row.exit is None else f"up to {row.exit}"
    answers = f"over {', '.join(row.over)}" if row.over else answers
    return {**row.model_dump(mode="json", exclude={"config"}), "answers": answers, "memory_mib": row.memory_mib}

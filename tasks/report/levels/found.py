"""Levels of a device as data of the report."""

from pathlib import Path

from tasks.base.schemas.operating_points import LEVELS_FILE, LevelRow, Levels
from tasks.report.looks import Row


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

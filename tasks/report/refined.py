"""What the refinement measured, where it ran: the candidates, and why winners of the search were replaced."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.artifacts import read_json, read_lines
from tasks.pages.text import milliseconds, percent
from tasks.refine import EVALUATED_FILE, MEASURED_FILE

Row = dict[str, Any]
SHOWN = ("digest", "predicted_ms", "smoothed_ms", "predicted_accuracy", "macs", "parameters")


def refinement(folder: Path, front: Mapping[str, Any]) -> Row | None:
    """Of the folder with `front.json`; None where the search's front was not refined.

    `candidates` with predictions and measurements (None: not measured), `replaced` with both SubNets and the reason.
    """
    if "refinement" not in front:
        return None
    accuracy = {line["digest"]: line["correct"] / line["total"] for line in read_lines(folder / EVALUATED_FILE)}
    candidates = [
        {
            **{name: row[name] for name in SHOWN},
            "measured_ms": row["latency"]["p50_ms"],
            "measured_accuracy": accuracy.get(row["digest"]),
        }
        for row in read_json(folder / MEASURED_FILE)["candidates"]
    ]
    known = {row["digest"]: row for row in candidates}
    margin = front["refinement"]["settings"]["margin"]
    replaced = [
        {
            "budget_ms": row["budget_ms"],
            "before": known[row["replaces"]["digest"]],
            "after": known[row["digest"]],
            "reason": _reason(row, known[row["replaces"]["digest"]], margin),
        }
        for row in front["winners"]
        if row["replaces"]
    ]
    return {**front["refinement"], "candidates": candidates, "replaced_winners": replaced}


def _reason(winner: Mapping[str, Any], before: Mapping[str, Any], margin: float) -> str:
    """Why the search's winner of a budget is none by measurement."""
    budget_ms, own_ms = winner["budget_ms"], before["measured_ms"]
    careful_ms = (1 - margin) * budget_ms
    if own_ms is None:
        return "could not be measured"
    if own_ms > budget_ms:
        fastest = "" if winner["within_budget"] else "; so does every other, and the fastest is kept"
        return f"misses the budget by {percent(own_ms / budget_ms - 1)}{fastest}"
    if own_ms > careful_ms >= winner["measured_ms"]:
        return f"leaves less than the margin of {percent(margin)}"
    if before["smoothed_ms"] > careful_ms >= winner["smoothed_ms"]:
        return f"likely takes {milliseconds(before['smoothed_ms'])}, by what SubNets like it take"
    if before["measured_accuracy"] is None:
        return "was not evaluated"
    points = 100 * (winner["measured_accuracy"] - before["measured_accuracy"])
    if points > 0:
        return f"{points:.1f} points less accurate"
    faster = f", and slower ({milliseconds(own_ms)})" if own_ms > winner["measured_ms"] else ""
    return f"as accurate, with a larger loss{faster}"

"""The refinement, if there was one: its measured candidates, and the reasons for replacing winners."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas.candidates import MEASURED_FILE, Candidates
from tasks.base.schemas.front import Front, Winner

Row = dict[str, Any]
SHOWN = {"digest", "predicted_ms", "smoothed_ms", "predicted_accuracy", "macs", "parameters"}


def refinement(folder: Path, front: Front) -> Row | None:
    """Content of the folder with `front.json`; None if the search's front was not refined.

    `candidates` with predictions and measurements (None: not measured), `replaced_winners` with both SubNets and the reason.
    """
    if front.refinement is None:
        return None
    candidates = [
        {
            **row.model_dump(mode="json", include=SHOWN),
            "measured_ms": row.latency.p50_ms,
            "measured_accuracy": row.accuracy,
        }
        for row in Candidates.read(folder / MEASURED_FILE).candidates
    ]
    known = {row["digest"]: row for row in candidates}
    margin = front.refinement.settings["margin"]
    replaced = [
        {
            "budget_ms": row.budget_ms,
            "before": known[row.replaces.digest],
            "after": known[row.digest],
            "reason": _reason(row, known[row.replaces.digest], margin),
        }
        for row in front.winners
        if row.replaces
    ]
    return {**front.refinement.to_json(), "candidates": candidates, "replaced_winners": replaced}


def _reason(winner: Winner, before: Mapping[str, Any], margin: float) -> str:
    """The reason why the search's winner of a budget is no winner by measurement."""
    budget_ms, own_ms = winner.budget_ms, before["measured_ms"]
    careful_ms = (1 - margin) * budget_ms
    if own_ms is None:
        return "could not be measured"
    assert winner.measured_ms is not None, "a refined winner is measured"
    if own_ms > budget_ms:
        fastest = "" if winner.within_budget else "; so does every other, and the fastest is kept"
        return f"misses the budget by {percent(own_ms / budget_ms - 1)}{fastest}"
    if own_ms > careful_ms >= winner.measured_ms:
        return f"leaves less than the margin of {percent(margin)}"
    if winner.smoothed_ms is not None and before["smoothed_ms"] > careful_ms >= winner.smoothed_ms:
        return f"likely takes {milliseconds(before['smoothed_ms'])}, by what SubNets like it take"
    if before["measured_accuracy"] is None:
        return "was not evaluated"
    points = 100 * (winner.accuracy - before["measured_accuracy"])
    if points > 0:
        return f"{points:.1f} points less accurate"
    faster = f", and slower ({milliseconds(own_ms)})" if own_ms > winner.measured_ms else ""
    return f"as accurate, with a larger loss{faster}"

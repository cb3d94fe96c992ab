"""Rows of a report as JSON: exported files and bundle, the refinement, the engine of a device, and labels of charts.

The refinement has its measured candidates, and the reasons for replacing winners; the engine has the chosen options of
the device's runtime, and their gain. Plotly reads a subset of HTML in labels, so all text from the user is escaped.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas.exports import Card, ExportedFile, Exports
from tasks.base.schemas.winners import MEASURED_FILE, Candidates, Front, Winner
from tasks.measuring.runtime_options.settings import RUNTIME_OPTIONS_FILE, ChosenEngine

Row = dict[str, Any]
"""A part of `report.json`."""

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#4c7fd9", "#e0823d", "#3f9f6b", "#d6504b", "#8d6cc9", "#8c929b"
TURQUOISE, GOLD, PINK = "#2aa5b8", "#b8860b", "#c2578f"
MAX_LINES = 16


def card_of(label: str, value: str, note: str, device: str = "") -> Row:
    """A card of the headline. device: the device that it is about, "" if none."""
    return {"label": label, "value": value, "note": note, "device": device}


def png(file: Path) -> str:
    """A picture as the source of an image in HTML."""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def files_of(exports: Exports) -> Row:
    """The exported files of the winners. `formats`: files, sizes and largest difference of each.

    `bundle`: its size, or None if none was requested. `int8`: whether a file is quantised. `adapted`: facts about each SubNet
    that has adapted.
    """
    winners = {row.digest for row in exports.winners}
    cards = [card for card in exports.subnets if card.digest in winners]
    files: dict[str, list[ExportedFile]] = {}
    for card in cards:
        for name, file in card.files.items():
            files.setdefault(name, []).append(file)
    bundle = exports.bundle and exports.bundle.to_json()
    return {
        "formats": [_format(name, rows) for name, rows in files.items()],
        "bundle": bundle,
        "int8": any(map(int8_of, cards)),
        "adapted": {card.digest: card.adapted.to_json() for card in cards if card.adapted is not None},
    }


def int8_of(card: Card) -> Row | None:
    """The quantised file of a SubNet: test accuracy, latency and bytes beside those in fp32, layers that stay in fp32."""
    for file in card.files.values():
        if (found := file.int8) is not None:
            return {
                "accuracy": found.accuracy.get("test"),
                "measured_ms": found.latency and found.latency.p50_ms,
                "fp32_ms": found.fp32_ms,
                "bytes": file.bytes,
                "fp32_bytes": found.fp32_bytes,
                "layers": found.layers,
                "kept_fp32": list(found.kept_fp32),
            }
    return None


def _format(name: str, files: Sequence[ExportedFile]) -> Row:
    good = [file for file in files if file.state == "ok"]
    sizes = [file.bytes for file in good if file.bytes is not None]
    checked = dict.fromkeys(
        f"{file.runtime} {file.precision}, {'on the device' if file.on_device else 'on this machine'}" for file in good
    )
    return {
        "name": name,
        "subnets": len(good),
        "failed": len(files) - len(good),
        "bytes": sum(sizes),
        "smallest_bytes": min(sizes, default=None),
        "largest_bytes": max(sizes, default=None),
        "checked": list(checked),
        "max_difference": max((one for file in good if (one := file.relative_difference) is not None), default=None),
        "tolerance": max((one for file in good if (one := file.tolerance) is not None), default=None),
    }


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
    reduced_ms = (1 - margin) * budget_ms
    if own_ms is None:
        return "could not be measured"
    assert winner.measured_ms is not None, "a refined winner is measured"
    if own_ms > budget_ms:
        fastest = "" if winner.within_budget else "; so does every other, and the fastest is kept"
        return f"misses the budget by {percent(own_ms / budget_ms - 1)}{fastest}"
    if own_ms > reduced_ms >= winner.measured_ms:
        return f"leaves less than the margin of {percent(margin)}"
    if winner.smoothed_ms is not None and before["smoothed_ms"] > reduced_ms >= winner.smoothed_ms:
        return f"likely takes {milliseconds(before['smoothed_ms'])}, by what SubNets like it take"
    if before["measured_accuracy"] is None:
        return "was not evaluated"
    points = 100 * (winner.accuracy - before["measured_accuracy"])
    if points > 0:
        return f"{points:.1f} points less accurate"
    faster = f", and slower ({milliseconds(own_ms)})" if own_ms > winner.measured_ms else ""
    return f"as accurate, with a larger loss{faster}"


def point_label(title: str, facts: Iterable[str], architecture: Sequence[str]) -> str:
    """A title, facts, and the architecture if there is one, a line for each stage; further lines are cut."""
    more = [f"… {len(architecture) - MAX_LINES} more"] if len(architecture) > MAX_LINES else []
    shown = [*facts, *([""] if architecture else []), *architecture[:MAX_LINES], *more]
    return "<br>".join([f"<b>{escape(title)}</b>", *map(escape, shown)])


def chosen_engine(folder: Path | None) -> Row | None:
    """Content of the folder of the stage; None without one. `text`: for people; `tried`: the choices that were timed."""
    if folder is None:
        return None
    found = ChosenEngine.read(folder / RUNTIME_OPTIONS_FILE)
    return {
        "text": found.text,
        "note": _note(found),
        "speed_up": found.speed_up,
        "chosen": found.chosen,
        "fixed": found.fixed,
        "gain": found.gain and found.gain.to_json(),
        "tried": [one.to_json() for one in found.tried],
        "left_out": [one.to_json() for one in found.left_out],
        "subnets": [one.to_json() for one in found.subnets],
        "measured_s": found.measured_s,
    }


def _note(found: ChosenEngine) -> str:
    """The engine and its gain in a line."""
    if found.gain is None and not found.tried:
        return f"{found.text}: no other choice was timed"
    if found.gain is None:
        return f"{found.text}: none of {len(found.tried)} choices that were timed gains enough"
    times = f"the geometric mean of {len(found.subnets)} SubNets, {found.gain.pairs} pairs"
    if found.gain.low is None or found.gain.high is None:
        return f"{found.text} instead of the runtime's defaults; {times}"
    least, most = 1 / found.gain.high, 1 / found.gain.low
    return f"{found.text} instead of the runtime's defaults; {times}, 95 % within {least:.2f} and {most:.2f}"


def card(device: Row) -> list[Row]:
    """The card of the headline: the part of the speed that comes from the engine alone."""
    found, name = device["engine"], device["name"]
    return [] if found is None else [card_of(f"{name}: engine", f"{found['speed_up']:.2f} ×", found["note"], name)]


def rows(found: Row) -> list[tuple[str, str, str, str]]:
    """A row for each tried choice: the choice, the time with it over the time without, its interval, the decision."""
    shown = []
    for one in found["tried"]:
        gain = one["gain"]
        interval = "–" if gain["low"] is None else f"{percent(gain['low'])} to {percent(gain['high'])}"
        beside = ", ".join(f"{name}={choice}" for name, choice in one["beside"].items())
        choice = f"{one['option']}={one['choice']}" + (f" beside {beside}" if beside else "")
        shown.append((choice, percent(gain["ratio"]), interval, one["reason"] or "kept"))
    left_out = [(f"{one['option']}={one['choice']}", "–", "–", one["reason"]) for one in found["left_out"]]
    return [*shown, *left_out]

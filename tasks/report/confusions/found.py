"""Confusion matrices as data of the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tasks.evaluation.confusions import BASE, CONFUSIONS_FILE, Confusions, read_confusions
from tasks.report.headline import fastest_within, reference
from tasks.report.looks import Row
from tasks.report.sources import DeviceSources


class ReportedConfusions(TypedDict):
    """The matrix of one network. device: where it was chosen, "" for the base network. confusion: by class and answer."""

    device: str
    title: str
    classes: list[str]
    confusion: list[list[int]]


def confusions(
    report: Row, base: Path | None, devices: Sequence[DeviceSources], points: float
) -> list[ReportedConfusions]:
    """Matrices of the base network, and of a winner of each device: the headline's winner, or else the most accurate one.

    report: everything except the matrices. base: the folder with the base network's file. Networks without a matrix are left
    out.
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


def _shown(line: Confusions | None, device: str, title: str) -> list[ReportedConfusions]:
    if line is None:
        return []
    return [ReportedConfusions(device=device, title=title, classes=line["classes"], confusion=line["confusion"])]

"""Report: everything a run found, as a page that works offline, as data, and as tables for the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from importing.lazy import public_names
from tasks.artifacts import read_json, write_bytes, write_json
from tasks.report.settings import Settings

if TYPE_CHECKING:
    from tasks.report.sources import DeviceSources, PretrainingSources, Sources
    from tasks.report.terminal import terminal_table
else:
    __getattr__ = public_names(__name__, __file__)

PAGE_FILE = "report.html"
DATA_FILE = "report.json"
MADE_FROM = "made_from"
"""The key in report.json."""

__all__ = [
    "DATA_FILE",
    "PAGE_FILE",
    "DeviceSources",
    "PretrainingSources",
    "Settings",
    "Sources",
    "known",
    "renewed",
    "run",
    "terminal_table",
]


def run(sources: "Sources", settings: Settings, out: Path, made_from: str | None = None) -> dict[str, Any]:
    """Write report.html and report.json into `out`; returns the content of report.json.

    made_from: a digest of all that the report tells but `sources.stages`, by which `known` finds it again.
    """
    from tasks.report.gather import gather  # torch takes seconds

    report = gather(sources, settings)
    return _written(report if made_from is None else {**report, MADE_FROM: made_from}, out)


def known(out: Path, made_from: str) -> dict[str, Any] | None:
    """The content of the report in `out`, where it is whole and was made from the same; else None."""
    try:
        report = read_json(out / DATA_FILE)
    except (OSError, ValueError):
        return None
    same = isinstance(report, dict) and report.get(MADE_FROM) == made_from and (out / PAGE_FILE).is_file()
    return report if same else None


def renewed(report: dict[str, Any], stages: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """A known report with these rows of stages; written again where they are others."""
    rows = [dict(row) for row in stages]
    return report if report["stages"] == rows else _written({**report, "stages": rows}, out)


def _written(report: dict[str, Any], out: Path) -> dict[str, Any]:
    """The page is written first: a report without its page is not known."""
    from tasks.report.page import render  # plotly takes a second

    write_bytes(out / PAGE_FILE, render(report).encode())
    write_json(out / DATA_FILE, report)
    return report

"""Report: all results of a run, as a page that works offline, as data, and as tables for the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from importing import public_names
from tasks.base.artifacts import write_bytes, write_json
from tasks.report.sources import Settings

if TYPE_CHECKING:
    from tasks.report.headline import terminal_table
    from tasks.report.sources import DeviceSources, PretrainingSources, Sources
else:
    __getattr__ = public_names(__name__, __file__)

PAGE_FILE = "report.html"
DATA_FILE = "report.json"


def run(sources: "Sources", settings: Settings, out: Path) -> dict[str, Any]:
    """Write report.html and report.json into `out`; returns the content of report.json."""
    from tasks.report.gather import gather  # plotly takes a second
    from tasks.report.page import render

    report = gather(sources, settings)
    write_json(out / DATA_FILE, report)
    write_bytes(out / PAGE_FILE, render(report).encode())
    return report

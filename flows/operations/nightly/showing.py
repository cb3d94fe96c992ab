"""A night in Prefect's UI: the verdict, both nights by device, and the changes."""

from pathlib import Path

from prefect.artifacts import create_markdown_artifact

from flows.pipeline.pages.markdown import cell, code, table
from tasks.operations.nightly.page import NightReport, change_of, device_rows

KEY = "nightly"
SHOWN = 20
"""Maximum number of findings and stages listed; the page has all of them."""


def publish_night(report: NightReport, line: str, page: Path) -> None:
    """Publish an artifact of the run. Call it inside a flow."""
    create_markdown_artifact(night_in_short(report, line, page), key=KEY, description="against the night before")


def night_in_short(report: NightReport, line: str, page: Path) -> str:
    """Markdown: the line, findings, devices, changed inputs, and stages."""
    parts = [f"### {cell(line)}", *(cell(note) for note in report.comparison.notes)]
    if findings := report.night.findings[:SHOWN]:
        rows = [[one.device or "–", one.kind, one.what, change_of(one), f"{one.p_value:.1e}"] for one in findings]
        parts.append(table(["device", "what", "", "before → now", "p-value"], rows))
    if devices := device_rows(report):
        parts.append(table(list(devices[0]), [list(row.values()) for row in devices]))
    if report.night.compared_with is not None:
        changed = [f"- {cell(line)}" for line in report.changed] or ["No input changed."]
        parts += ["#### Inputs that changed", "\n".join(changed)]
    if report.stages:
        rows = [
            [change.stage, "worked again" if change.worked else "found complete", "; ".join(change.why)]
            for change in report.stages[:SHOWN]
        ]
        parts.append(table(["stage", "", "because of"], rows))
    return "\n\n".join([*parts, "Trends over all nights are a file to open in a browser:", code(page)])

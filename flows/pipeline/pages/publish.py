"""Artifacts in Prefect's UI: a summary of each stage, tables of winners, pictures, and the report, as Markdown.

Call these inside a task or flow. Pictures are embedded as `data:` addresses because the UI's server has no access to a
run's files.
"""

import base64
import io
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from flows.pipeline.pages import Facts, Row, named_by, report_rows
from flows.pipeline.progress import artifact_key
from flows.pipeline.run import Output
from tasks.report.headline import unkept
from tasks.report.parts import BLUE, GREEN, ORANGE


def summary(title: str, state: str, folder: Path, facts: Facts) -> str:
    """A stage's summary: its final state, its facts, and its folder."""
    return "\n\n".join([f"### {cell(title)}", state, table(["", ""], list(facts.items())), code(folder)])


def report_in_short(report: Row, page: Path, address: str | None) -> str:
    """Headline and winners of a report, and the location of the full report. address: the report's page on a server."""
    cards = [(card["label"], f"**{card['value']}**", card["note"]) for card in report["headline"]]
    parts = [f"### {cell(report['model'])}", table(["", "", ""], cards)]
    for device in report["devices"]:
        rows = [named_by(report["score"], row) for row in report_rows(device)]
        parts.append(f"#### {cell(device['name'])}")
        if missed := unkept(device):
            parts.append(f"**{cell(missed)}**")
        parts.append(table(list(rows[0]), [list(row.values()) for row in rows]))
    if address:
        parts.append(f"[The whole report, with charts]({address}), and the same file:")
    else:
        parts.append("The whole report, with charts, is a file to open in a browser:")
    return "\n\n".join([*parts, code(page)])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def cell(text: str) -> str:
    """A text on one line, with HTML and cell separators escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")


def code(path: Path) -> str:
    """A path to copy, with the name of its machine."""
    return f"On `{socket.gethostname()}`:\n\n```\n{path.resolve()}\n```"


SIZE_INCHES = (7.2, 4.2)
DOTS_PER_INCH = 110


def front_picture(device: Row) -> str:
    """The measured front of one device of a report, as a `data:` address of a PNG."""
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(
        xlabel="measured latency [ms]", ylabel=f"test {device['score']} [%]", title=device["name"]
    )
    winners = list({row["digest"]: row for row in device["winners"]}.values())
    for rows, name, marker, color, filled in (
        (device["baseline"], "uniformly shrunk", "s", ORANGE, True),
        ([row for row in winners if not row["on_front"]], "winners, dominated", "o", BLUE, False),
        ([row for row in winners if row["on_front"]], "winners", "o-", BLUE, True),
        ([device["base"]], device["base"]["name"], "*", GREEN, True),
    ):
        known = [row for row in rows if row["measured_ms"] is not None and row["accuracy"] is not None]
        if points := sorted((row["measured_ms"], 100 * row["accuracy"]) for row in known):
            look: dict[str, Any] = {
                "markersize": 14 if marker == "*" else 7,
                "markerfacecolor": color if filled else "none",
            }
            axes.plot(*zip(*points, strict=True), marker, color=color, label=name, **look)
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def publish_stage(output: Output, facts: Facts) -> None:
    """A summary of the stage's result."""
    text = summary(output.stage, state_of(output), output.folder, facts)
    create_markdown_artifact(text, key=artifact_key("stage", output.stage))


def publish_winners(device: str, rows: Sequence[Facts], state: str) -> None:
    """Publish the SubNets for each budget of a device. state: how far their values are known."""
    description = f"winners on {device}: {state}"
    create_table_artifact([dict(row) for row in rows], key=artifact_key("winners", device), description=description)


def publish_plan(rows: Sequence[Facts]) -> None:
    """Publish a dry run."""
    create_table_artifact([dict(row) for row in rows], key="plan", description="dry run: nothing is measured")


def publish_report(report: dict[str, Any], page: Path, address: str | None) -> None:
    """Publish the report in short, and each device's front. address: report.html on a server; browsers refuse file links."""
    for device in report["devices"]:
        description = f"measured front on {device['name']}"
        create_image_artifact(front_picture(device), key=artifact_key("front", device["name"]), description=description)
    create_markdown_artifact(report_in_short(report, page, address), key=artifact_key("report", "pipeline"))


def line_of(output: Output, facts: Facts) -> str:
    """A stage as one line of a log."""
    return "; ".join([f"{output.stage}: {state_of(output)}", *(f"{name} {text}" for name, text in facts.items())])


def state_of(output: Output) -> str:
    """The state of a finished stage: worked, or found complete."""
    worked = f"worked in {output.seconds:.1f} s"
    return f"found complete ({worked} before)" if output.cached else worked

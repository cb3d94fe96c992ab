"""Artifacts in Prefect's UI: a summary of each stage, tables of winners, the report. Call these inside a task or flow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from flows.pipeline.pages.facts import Facts
from flows.pipeline.pages.markdown import report_in_short, summary
from flows.pipeline.pages.pictures import front_picture
from flows.pipeline.progress import artifact_key
from flows.pipeline.run import Output


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

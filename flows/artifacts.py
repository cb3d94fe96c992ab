"""Results of stages in the Prefect UI: a markdown summary of each, tables of winners, a link to the report."""

from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.progress import artifact_key
from flows.run import Output

MAX_LINES = 40


def publish_stage(output: Output) -> None:
    """A summary of the stage's result."""
    state = "found complete" if output.cached else f"worked in {output.seconds:.1f} s"
    lines = [f"### {output.stage}", f"{state}: `{output.folder}`", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in output.result.items() if _is_short(value)][:MAX_LINES]
    create_markdown_artifact("\n".join(lines), key=artifact_key("stage", output.stage))


def publish_winners(device: str, rows: list[dict[str, Any]]) -> None:
    """The SubNets found for each budget of a device."""
    columns = ("budget_ms", "predicted_ms", "predicted_accuracy", "macs", "parameters", "digest")
    table = [{column: row[column] for column in columns} for row in rows]
    create_table_artifact(table, key=artifact_key("winners", device), description=f"winners on {device}")


def publish_report(page: Path) -> None:
    """A link to report.html."""
    create_link_artifact(page.resolve().as_uri(), link_text="report.html", key=artifact_key("report", "pipeline"))


def _is_short(value: Any) -> bool:
    return not isinstance(value, dict | list) and len(str(value)) < 120


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")

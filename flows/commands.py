"""Commands as flow calls, and what they show in the terminal."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flows.adapt import adapt
from flows.config import AdaptConfig, RunConfig
from flows.pipeline import StageName, pipeline
from profiling_agents.messages import AgentError
from tailor_ir.errors import TailorError
from tasks.enumerate import listing
from tasks.errors import UserError
from tasks.report import terminal_table

USERS_ERRORS = (UserError, TailorError, AgentError)
Config = RunConfig | AdaptConfig
LONG = 200


def execute(command: str, config: Config) -> dict[str, Any]:
    """Run a command, show its result, and return it as JSON."""
    result = _call(command, config)
    console = Console()
    if "report_html" in result:
        for table in terminal_table(result):
            console.print(table)
        console.print(f"report: {escape(result['report_html'])}")
    else:
        for stage in result["stages"]:
            console.print(_stage_table(stage))
    if command == "enumerate":
        (stage,) = result["stages"]
        result |= listing(Path(stage["folder"]), stage["result"])
    return result


def execute_sweep(command: str, runs: Sequence[tuple[Sequence[str], Config]]) -> list[dict[str, Any]]:
    """One run per combination, then a table of them all."""
    results = []
    for overrides, config in runs:
        Console(stderr=True).rule(escape(" ".join(overrides)))
        results.append({"overrides": list(overrides), **execute(command, config)})
    Console().print(_sweep_table(results))
    return results


def _call(command: str, config: Config) -> dict[str, Any]:
    if isinstance(config, AdaptConfig):
        return adapt(config)
    return pipeline(config, cast(StageName, "report" if command == "run" else command))


def _stage_table(stage: dict[str, Any]) -> Table:
    state = "found complete" if stage["cached"] else f"{stage['seconds']:.1f} s"
    table = Table(title=escape(f"{stage['stage']} ({state})"), show_header=False, box=None, title_justify="left")
    for name, value in stage["result"].items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(escape(name), escape(text if len(text) <= LONG else f"{text[:LONG]}… (--json FILE has it all)"))
    table.add_row("folder", escape(stage["folder"]))
    return table


def _sweep_table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="sweep")
    for column in ("overrides", "stage", "device", "result"):
        table.add_column(column)
    for result in results:
        for stage, device, text in _sweep_rows(result):
            table.add_row(escape(" ".join(result["overrides"])), stage, escape(device), escape(text))
    return table


def _sweep_rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    if "report_html" not in result:
        return [(row["stage"].split("/")[0], row["stage"].partition("/")[2], row["folder"]) for row in result["stages"]]
    rows = []
    for device in result["devices"]:
        measured = [row for row in device["winners"] if row["measured_ms"] is not None]
        text = ", ".join(f"{row['measured_ms']:.3g} ms {100 * row['accuracy']:.1f} %" for row in measured)
        rows.append(("report", device["name"], text))
    return rows

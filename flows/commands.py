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
from tasks.choose import Question
from tasks.choose.terminal import chosen_tables, comparison_table
from tasks.enumerate import listing
from tasks.errors import UserError
from tasks.report import terminal_table

USERS_ERRORS = (UserError, TailorError, AgentError)
Config = RunConfig | AdaptConfig
UNTIL = {"run": "report", "compare": "search"}
LONG = 200


def execute(command: str, config: Config, *, dry_run: bool = False, question: Question | None = None) -> dict[str, Any]:
    """Run a command, show its result, and return it as JSON. dry_run: only tell what profiling would do."""
    result = _call(command, config, dry_run, question)
    console = Console()
    if question:
        for row in result.get("chosen", ()):
            console.print(chosen_tables(row))
        for row in result.get("compared", ()):
            console.print(comparison_table(row))
    elif "report_html" in result:
        for table in terminal_table(result):
            console.print(table)
        console.print(f"report: {escape(result['report_html'])}")
    elif dry_run:
        console.print(_plan_table(result["plan"]))
    else:
        for stage in result["stages"]:
            console.print(_stage_table(stage))
    if command == "enumerate":
        (stage,) = result["stages"]
        result |= listing(Path(stage["folder"]), stage["result"])
    return result


def execute_sweep(
    command: str,
    runs: Sequence[tuple[Sequence[str], Config]],
    *,
    dry_run: bool = False,
    question: Question | None = None,
) -> list[dict[str, Any]]:
    """One run per combination, then a table of them all."""
    results = []
    for overrides, config in runs:
        Console(stderr=True).rule(escape(" ".join(overrides)))
        result = execute(command, config, dry_run=dry_run, question=question)
        results.append({"overrides": list(overrides), **result})
    if not dry_run:
        Console().print(_sweep_table(results))
    return results


def _call(command: str, config: Config, dry_run: bool, question: Question | None) -> dict[str, Any]:
    if isinstance(config, AdaptConfig):
        return adapt(config, "plan" if dry_run else "report")
    until = "plan" if dry_run else UNTIL.get(command, command)
    return pipeline(config, cast(StageName, until), question)


def _plan_table(plan: dict[str, dict[str, Any]]) -> Table:
    """A row for each device; nothing was measured."""
    guessed = any(row["estimated_from"] == "settings" for row in plan.values())
    note = "* from the settings: the device has timed no operator under them yet" if guessed else None
    table = Table(title="dry run: nothing is measured", caption=note, title_justify="left", caption_justify="left")
    table.add_column("device", overflow="fold")
    for column in ("operators", "known", "noisy", "failed", "to measure", "device time"):
        table.add_column(column, justify="right")
    for name, row in plan.items():
        counts = (row[key] for key in ("operators", "known", "known_noisy", "known_failed", "to_measure"))
        mark = "*" if row["estimated_from"] == "settings" else ""
        table.add_row(escape(name), *map(str, counts), f"{row['estimated_s']:.1f} s{mark}")
    return table


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

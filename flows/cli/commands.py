"""Commands as calls of flows, and their tables in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.markup import escape
from rich.table import Table

from adaptive_runtime.base.errors import without_passwords
from flows.cli.arguments import Arguments
from flows.cli.terminal import Terminal
from flows.cli.words import CHOSEN_FOLDER, COMMANDS
from flows.config import FlowConfig, RetargetConfig, RunStage
from flows.pipeline.stages import table_of
from flows.pipeline.stages.forecast import TIMES, Expectation, forecast
from importing import later_names
from tasks.base.errors import UserError
from tasks.base.pages.text import PlainConsole
from tasks.base.schemas.placed import ChosenSubNet
from tasks.base.schemas.results import STREAM_FILE, StreamedNetwork
from tasks.base.schemas.winners import FRONT_FILE, Front, Winner
from tasks.data.problems import CLASSIFICATION, problem_named
from tasks.report import terminal_table
from tasks.report.streams import streamed_table
from tasks.search.choose import Question

if TYPE_CHECKING:
    from tasks.measuring.operators import listing
    from tasks.search.terminal import chosen_tables, comparison_table, front_table
else:
    globals().update(later_names(__file__))

LONG = 200


def execute(arguments: Arguments, config: FlowConfig, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a command with a validated config, show its result, and return it as JSON. known: the result, if already complete."""
    command, question = arguments.command, arguments.question
    terminal = Terminal()
    if arguments.dry_run and not COMMANDS[command].plans:
        expected = foresee(command, config, question)
        terminal.show(_forecast_table(expected))
        return {"dry_run": [row.to_json() for row in expected]}
    score = problem_named(config.data.problem, config.data.metric).score
    result = known or _call(command, config, arguments.dry_run, question)
    if question and not question.files:
        for row in result.get("chosen", ()):
            terminal.show(chosen_tables(row, score))
            file = arguments.to or config.folder / CHOSEN_FOLDER / f"{row['device']}.json"
            row["file"] = str(write_chosen(row, file))
            terminal.say(f"file: {row['file']}")
        terminal.show(*(comparison_table(row, score) for row in result.get("compared", ())))
    elif "report_html" in result:
        terminal.show(*terminal_table(result))
        terminal.say(f"report: {result['report_html']}")
    elif arguments.dry_run:
        terminal.show(_plan_table(result["plan"]))
    else:
        for stage in result["stages"]:
            _show_stage(command, stage, terminal, score)
    if exports := result.get("exports"):
        terminal.say(f"exported files: {', '.join(exports.values())}")
    if command == "enumerate":
        (stage,) = result["stages"]
        result |= listing(Path(stage["folder"]), stage["result"])
    if night := result.get("nightly"):
        terminal.say(night["line"])
    return result


def _show_stage(command: str, stage: dict[str, Any], terminal: Terminal, score: str) -> None:
    folder = Path(stage["folder"])
    if command == "search" and (folder / FRONT_FILE).exists():
        terminal.show(front_table(Front.read(folder / FRONT_FILE), score))
    elif command == "stream":
        terminal.show(streamed_table(StreamedNetwork.read(folder / STREAM_FILE)))
        terminal.say(f"folder: {folder}")
    else:
        terminal.show(stage_table(stage, score))


def execute_sweep(arguments: Arguments, runs: Sequence[tuple[Sequence[str], FlowConfig]]) -> list[dict[str, Any]]:
    """Run each combination, then show a table of all of them."""
    results = []
    for overrides, config in runs:
        shown = [without_passwords(text) for text in overrides]
        PlainConsole(stderr=True).rule(escape(" ".join(shown)))
        results.append({"overrides": shown, **execute(arguments, config)})
    if not arguments.dry_run:
        Terminal().show(_sweep_table(results))
    return results


def write_chosen(row: Mapping[str, Any], file: Path) -> Path:
    """Write a chosen SubNet atomically. UserError if the file cannot be written."""
    subnet = Winner.model_validate({name: row[name] for name in Winner.model_fields if name in row})
    try:
        file.parent.mkdir(exist_ok=True)
        ChosenSubNet(device=row["device"], rule=row["rule"]["text"], subnet=subnet).write(file)
    except OSError as error:
        elsewhere = "--to FILE.json writes it elsewhere"
        raise UserError(f"'{file}'", f"cannot be written ({error.strerror})", next_step=elsewhere) from error
    return file


def foresee(command: str, config: FlowConfig, question: Question | None = None) -> list[Expectation]:
    """A row for each stage of a command: complete or not, and why. Nothing is worked."""
    return forecast(table_of(config), config.answering(question), COMMANDS[command].until or command)


def _call(command: str, config: FlowConfig, dry_run: bool, question: Question | None) -> dict[str, Any]:
    """Call the flow of a command. Flows are loaded on demand: each describes its options to Prefect when loaded, which takes
    0.2 s.
    """
    if command == "nightly":
        from flows.operations.nightly.night import night_of

        return night_of(config)
    if isinstance(config, RetargetConfig):
        from flows.pipeline.tailoring import retarget

        return retarget(config, "plan" if dry_run else "report")
    until = "plan" if dry_run else COMMANDS[command].until or command
    if question and question.files:
        until = "search"  # the rest concerns the files' SubNets
    from flows.pipeline.tailoring import pipeline

    return pipeline(config, cast(RunStage, until), question)


def _forecast_table(expected: Sequence[Expectation]) -> Table:
    complete = sum(row.state == "complete" for row in expected)
    title = f"dry run: {complete} of {len(expected)} stages are complete; nothing is worked"
    note = TIMES if complete < len(expected) else None
    table = Table(
        "stage", "state", "time", "why", title=title, caption=note, title_justify="left", caption_justify="left"
    )
    for row in expected:
        table.add_row(escape(row.stage), row.state, row.time, escape(row.why))
    return table


def _plan_table(plan: dict[str, dict[str, Any]]) -> Table:
    """A row for each device; nothing was measured."""
    counts = {"operators": "operators", "known": "known", "noisy": "known_noisy", "failed": "known_failed"}
    counts["to measure"] = "to_measure"
    table = Table(title="dry run: nothing is measured", title_justify="left", caption_justify="left")
    table.add_column("device")
    for column in (*counts, "device time"):
        table.add_column(column, justify="right")
    for name, row in plan.items():
        guessed = row["estimated_from"] == "settings"
        if guessed:
            table.caption = "* from the settings: the device has timed no operator under them yet"
        numbers = (str(row[key]) for key in counts.values())
        table.add_row(escape(name), *numbers, f"{row['estimated_s']:.1f} s{'*' if guessed else ''}")
    return table


def stage_table(stage: dict[str, Any], score: str) -> Table:
    """The result of a stage under its `--json` names, with the learning problem's score in place of the accuracy."""
    state = "found complete" if stage["cached"] else f"{stage['seconds']:.1f} s"
    table = Table(title=escape(f"{stage['stage']} ({state})"), show_header=False, box=None, title_justify="left")
    for name, value in stage["result"].items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        label = name.replace(CLASSIFICATION.score, score)
        table.add_row(escape(label), escape(text if len(text) <= LONG else f"{text[:LONG]}… (--json FILE has it all)"))
    table.add_row("folder", escape(stage["folder"]))
    return table


def _sweep_table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table("overrides", "stage", "device", "result", title="sweep")
    for result in results:
        if "report_html" in result:
            rows = [("report", device["name"], _measured(device)) for device in result["devices"]]
        else:
            titles = [row["stage"].partition("/") for row in result["stages"]]
            rows = [
                (name, label, row["folder"]) for (name, _, label), row in zip(titles, result["stages"], strict=True)
            ]
        for stage, device, text in rows:
            table.add_row(escape(" ".join(result["overrides"])), stage, escape(device), escape(text))
    return table


def _measured(device: Mapping[str, Any]) -> str:
    measured = [row for row in device["winners"] if row["measured_ms"] is not None]
    return ", ".join(f"{row['measured_ms']:.3g} ms {100 * row['accuracy']:.1f} %" for row in measured)

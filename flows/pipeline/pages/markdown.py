"""Markdown of Prefect's UI: the summary of a stage, and the report in short."""

import socket
from collections.abc import Sequence
from pathlib import Path

from flows.pipeline.pages.facts import Facts, named_by
from flows.pipeline.pages.tables import Row, report_rows
from tasks.report.headline import unkept


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

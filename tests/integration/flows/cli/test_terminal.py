"""What commands print is whole: in one line in a pipe, in wrapped cells in a narrow terminal."""

import pytest
from rich.console import Group
from rich.table import Table

from flows.cli.terminal import Terminal

LONG = "stages/finetune/" + "0123456789abcdef" * 10
WORDS = "channels predicted latency difference of the second less the first " * 3


def _table() -> Table:
    table = Table(title="a title", title_justify="left")
    table.add_column("folder", no_wrap=True)
    table.add_column("text")
    table.add_row(LONG, WORDS.strip())
    return table


def test_a_pipe_gets_whole_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Terminal().show(_table(), Group(_table()))
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if LONG in line and WORDS.strip() in line]) == 2
    assert max(map(len, shown.splitlines())) < len(LONG) + len(WORDS) + 10, "a table takes the columns that it needs"


def test_a_narrow_terminal_wraps_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    Terminal().show(Group(_table()))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    assert "…" not in shown
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    assert "".join(row[1].strip() for row in rows) == LONG
    assert " ".join(" ".join(row[2].split()) for row in rows).split() == WORDS.split()


def test_a_line_is_never_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    Terminal().say(f"report: [{LONG}]")
    assert capsys.readouterr().out == f"report: [{LONG}]\n"

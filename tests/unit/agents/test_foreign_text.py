"""What devices, relays and servers say has no power over the terminal that shows it."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.progress import Progress, TextColumn
from rich.table import Table

from adaptive_runtime.base.errors import AdaptiveError
from flows.cli import entry
from profiling_agents.lines import LAYOUT, UNSEEN, printable
from profiling_agents.messages import AgentError
from profiling_agents.serving.server import _say
from tailor_ir.errors import TailorError
from tasks.base.pages.text import PlainConsole

HOSTILE = "phone\x1b]0;owned\x07\x1b[2J\x9b31m\u202edrow\r\x00\ud800"
"""A title, a cleared screen, a colour by a C1 character, a turned word, a return to the line's beginning, half of a pair."""


@given(st.text(st.characters() | st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_a_printable_text_has_no_control_characters_and_says_what_they_were(text: str) -> None:
    shown = printable(text)
    assert not {one for one in shown if unicodedata.category(one) in UNSEEN} - {*LAYOUT}
    assert shown.encode().decode() == shown
    assert printable(shown) == shown
    assert text.isprintable() <= (shown == text)


@pytest.mark.parametrize("kind", [AgentError, lambda line: AdaptiveError("device", line), TailorError])
def test_error_lines_are_printable(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind(HOSTILE)
    entry._refuse(error)
    assert capsys.readouterr().err.strip().isprintable()


def test_passwords_are_in_no_line_of_an_agent() -> None:
    assert str(AgentError("relay http://user:secret@host: away")) == "relay http://user:***@host: away"


def test_a_console_shows_foreign_names_as_text_and_keeps_its_own_colours() -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, force_terminal=True, width=200)
    table = Table("name")
    table.add_row(f"[red]{escape(HOSTILE.replace(chr(0xD800), ''))}[/]")
    console.print(table)
    with Progress(TextColumn("{task.description}"), console=console) as bars:
        bars.add_task(HOSTILE.replace("\ud800", ""), total=1)
    shown = stream.getvalue()
    assert "\x1b[31mphone" in shown, "its own colour"
    assert "\\x1b]0;owned" in shown
    for sequence in ("\x1b]0", "\x07", "\x1b[2Jx", "\x9b", "\u202e", "\x00"):
        assert sequence not in shown


def test_an_agent_that_pulls_tells_of_its_relay_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    _say("relay http://user:secret@127.0.0.1:1: all connection attempts failed")
    said = capsys.readouterr().err
    assert "relay http://user:***@127.0.0.1:1: " in said
    assert "secret" not in said

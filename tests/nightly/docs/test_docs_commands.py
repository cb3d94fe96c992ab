"""Every `autotailor` command line that the documents show is one that the command line accepts."""

from pathlib import Path

import pytest

from tests.support.docs.commands import SHOWN, assert_accepted
from tests.support.docs.documents import Command


@pytest.fixture(scope="module")
def compiled() -> set[str]:
    """Networks with spaces that a command before has named."""
    return set()


@pytest.mark.parametrize("command", SHOWN, ids=lambda command: f"{command.where} {command.words[0]}")
def test_a_shown_command_is_accepted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: set[str]
) -> None:
    assert_accepted(command, tmp_path, monkeypatch, compiled)

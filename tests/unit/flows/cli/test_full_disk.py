"""A full disk is one line and exit code 2, whoever meets it and in whatever words."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

import adaptive_runtime.cli
import profiling_agents.cli
from flows.cli import entry
from profiling_agents.lines import full_disk
from tasks.base.artifacts import write_json
from tasks.base.errors import UserError, shortage


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def wrapped() -> Exception:
    """As a library tells what another one met."""
    try:
        try:
            raise os_error(errno.ENOSPC)
        except OSError as error:
            raise RuntimeError("the flow failed") from error
    except RuntimeError as error:
        return error


FULL = [
    os_error(errno.ENOSPC),
    os_error(errno.EDQUOT),
    os_error(errno.EFBIG),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    sqlite3.OperationalError("database or disk is full"),
    ExceptionGroup("both", [ValueError("other"), os_error(errno.ENOSPC)]),
    wrapped(),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_every_command_tells_a_full_disk_in_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(entry, "_execute", fails)
    monkeypatch.setattr(profiling_agents.cli, "_serve_agent", fails)
    monkeypatch.setattr(adaptive_runtime.cli.COMMANDS["check"], "run", fails)
    commands: list[Callable[[], int]] = [
        lambda: entry.main(["run"]),
        lambda: profiling_agents.cli.main(["--backend", "torch"]),
        lambda: adaptive_runtime.cli.main(["check", "bundle"]),
    ]
    for command in commands:
        assert command() == entry.BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert "the disk is full" in line
        assert line.endswith("the same command goes on")


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(entry, "_execute", fails)
    with pytest.raises(ValueError, match="a fault of ours"):
        entry.main(["run"])
    for error in (ValueError("full"), UserError("data", "bad"), os_error(errno.EACCES)):
        assert full_disk(error) is None
        assert shortage(error) is None


def test_a_file_that_finds_no_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise os_error(errno.ENOSPC)

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match=r"result\.json") as raised:
        write_json(tmp_path / "result.json", {})
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []

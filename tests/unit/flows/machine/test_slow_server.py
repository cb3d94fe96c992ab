"""A temporary Prefect server that is slow to start is one line with the way out, whoever started it."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows.cli import entry
from flows.machine import server
from flows.machine.server import START_SECONDS, WAIT, start_seconds, start_server, wait_until_ready
from tasks.base.errors import UserError

PREFECTS = "Timed out while attempting to connect to ephemeral Prefect API server."
ENDED = f"{PREFECTS} Ephemeral server process exited with code 1. stderr: line\nline"
WAY_OUT = f"; wait longer, as by {WAIT}=14, or start one yourself with 'prefect server start' and set PREFECT_API_URL"


@pytest.mark.parametrize(("message", "got"), [(PREFECTS, "did not answer in time"), (ENDED, "ended while it started")])
def test_a_server_that_prefect_started_is_one_line(
    message: str, got: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: object) -> int:
        raise RuntimeError(message)

    monkeypatch.setenv(WAIT, "7")
    monkeypatch.setattr(entry, "_execute", fails)
    assert entry.main(["run"]) == entry.BAD_INPUT
    assert capsys.readouterr().err == f"autotailor: Prefect server: {got}{WAY_OUT}\n"


def test_other_errors_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: object) -> int:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(entry, "_execute", fails)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        entry.main(["run"])


@pytest.mark.parametrize(
    ("code", "line"),
    [(None, "did not answer within 60 s; wait longer"), (3, "ended with code 3; look at the lines above")],
)
def test_a_server_of_ours_is_waited_for_as_long_as_the_variable_says(
    code: int | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 1.0))

    def refused(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(server, "time", clock)
    monkeypatch.setattr(httpx, "get", refused)
    monkeypatch.setenv(WAIT, "60")
    process: Any = SimpleNamespace(poll=lambda: code, returncode=code)
    with pytest.raises(UserError, match=f"Prefect server: {line}"):
        wait_until_ready(process, "http://127.0.0.1:0/api")
    assert now == [60.0 if code is None else 0.0]


def test_a_wait_that_is_no_number_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT)
    assert start_seconds() == START_SECONDS
    for given in ("soon", "0", "-1", ""):
        monkeypatch.setenv(WAIT, given)
        with pytest.raises(UserError, match=f"{WAIT}: got '{given}'; allowed: seconds, 1 or more; set it to 300"):
            start_seconds()
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp")
    monkeypatch.setenv("PREFECT_HOME", "/tmp/autotailor/prefect")
    with pytest.raises(UserError, match=WAIT):
        start_server()

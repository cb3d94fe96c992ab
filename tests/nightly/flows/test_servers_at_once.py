"""Servers of commands that start together share a database, which one after the other makes or looks through."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from flows.machine import in_turn
from flows.machine.server import DATABASE, start_server, wait_until_ready

HELD_S = 8.0
ANSWER_S = 120
END_S = 300


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prefect's home for a server that the test starts; an empty folder."""
    folder = tmp_path / "autotailor" / "prefect"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(folder))
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "")  # so that it is as it was when the test has ended
        monkeypatch.delenv(name)
    return folder


def test_a_second_command_of_a_process_waits_for_the_server_of_the_first(home: Path) -> None:
    """The first one may have ended before its server was ready."""
    start_server()
    url = os.environ["PREFECT_API_URL"]
    start_server()()
    assert os.environ["PREFECT_API_URL"] == url
    assert httpx.get(f"{url}/health", timeout=ANSWER_S, trust_env=False).is_success


def test_a_server_waits_while_another_makes_the_database(home: Path) -> None:
    command = [sys.executable, "-P", "-m", "flows.machine.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)) as server:
        assert server.stdout is not None
        with in_turn(DATABASE):
            port = int(server.stdout.readline())
            time.sleep(HELD_S)
            assert not list(home.glob("*.db")), "the server did not wait"
        wait_until_ready(server, f"http://127.0.0.1:{port}/api")
        assert list(home.glob("*.db"))
        server.communicate(timeout=END_S)

"""Servers of commands that start together share a database, which one after the other makes or looks through."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.machine.locks import in_turn
from flows.machine.server import DATABASE, wait_until_ready

pytestmark = pytest.mark.slow
HELD_S = 8.0


def test_a_server_waits_while_another_makes_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "autotailor" / "prefect"
    home.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(home))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    command = [sys.executable, "-P", "-m", "flows.machine.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)) as server:
        assert server.stdout is not None
        with in_turn(DATABASE):
            port = int(server.stdout.readline())
            time.sleep(HELD_S)
            assert not list(home.glob("*.db")), "the server did not wait"
        wait_until_ready(server, f"http://127.0.0.1:{port}/api")
        assert list(home.glob("*.db"))
        server.communicate(timeout=60)

"""What a killed agent leaves in the temporary directory goes when the next one starts, and nothing else does."""

import os
import time
from pathlib import Path

import pytest

from profiling_agents.network.server import LEFT_S, LOCK_FILE, PREFIX
from tests.support.agents import agent_processes as processes

OPTIONS = ["--backend", "onnxruntime", "--port", "0"]


def aged(folder: Path) -> Path:
    """The folder, as old as one that is looked at."""
    past_s = time.time() - 2 * LEFT_S
    os.utime(folder / LOCK_FILE, (past_s, past_s))
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.long
def test_the_next_agent_removes_the_folder_of_a_killed_one_and_no_other(temporary: Path, tmp_path: Path) -> None:
    foreign, young = temporary / f"{PREFIX}foreign", temporary / f"{PREFIX}young"
    for folder in (foreign, young):
        folder.mkdir()
    (young / LOCK_FILE).touch()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / LOCK_FILE).touch()
    (temporary / f"{PREFIX}link").symlink_to(aged(linked))
    with processes.started(OPTIONS, token=None) as (killed, printed):
        left = aged(Path(printed["agent token"]).parent)
        killed.kill()
        killed.wait()
    assert left.parent == temporary
    with processes.started(OPTIONS, token=None) as (_, printed):
        alive = aged(Path(printed["agent token"]).parent)
        assert not left.exists()
        with processes.started(OPTIONS, token=None):
            assert all(folder.exists() for folder in (alive, foreign, young, linked / LOCK_FILE))

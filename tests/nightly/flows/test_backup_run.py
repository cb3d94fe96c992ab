"""A run that is lost and comes back from its backup."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.flows.fixtures import Command
from tests.support.operations.backups import run_shown


def runs_of(folder: Path) -> set[str]:
    """Numbers of all runs in MLflow. By SQL: MLflow keeps a connection, which a database that was removed is lost to."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        return {number for (number,) in database.execute("SELECT run_uuid FROM runs")}


def worked(output: Path) -> dict[Path, int]:
    """Results of all stages, and when they were written."""
    return {file: file.stat().st_mtime_ns for file in (output / "stages").rglob("result.json")}


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 program is installed")
def test_a_run_comes_back_from_its_backup_and_works_nothing_again(
    finished: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(command.output.parent, work)
    copy = Command(work / "out", command.words)
    before, known = worked(copy.output), runs_of(work)
    (work / "fleet/files").mkdir(parents=True)  # of the page, which has a registry, too
    (work / "mlartifacts").mkdir(exist_ok=True)
    sqlite3.connect(work / "fleet/fleet.db").close()
    changes = {"/mnt/backups": str(tmp_path / "kept"), "outputs": "out"}
    run_shown(work, ["sqlite3 mlflow.db", "> SHA256SUMS"], changes)
    shutil.rmtree(work)
    work.mkdir()
    assert "whole" in run_shown(work, ["--check SHA256SUMS", "mkdir before"], changes)
    assert runs_of(work) == known != set()
    result = copy("run")
    assert worked(copy.output) == before
    assert result["devices"] == finished["devices"]

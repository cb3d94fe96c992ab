"""A run that is lost and comes back from its backup."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.cli import main
from tests.support.flows.fixtures import Command


def runs_of(folder: Path) -> set[str]:
    """Numbers of all runs in MLflow. By SQL: MLflow keeps a connection, which a database that was removed is lost to."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        return {number for (number,) in database.execute("SELECT run_uuid FROM runs")}


def worked(output: Path) -> dict[Path, int]:
    """Results of all stages, and when they were written."""
    return {file: file.stat().st_mtime_ns for file in (output / "stages").rglob("result.json")}


def test_a_run_comes_back_from_its_backup_and_works_nothing_again(
    finished: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    work, kept = tmp_path / "work", str(tmp_path / "kept")
    shutil.copytree(command.output.parent, work)
    copy = Command(work / "out", command.words)
    before, known = worked(copy.output), runs_of(work)
    places = [f"output_dir={copy.output}", f"mlflow=sqlite:///{work}/mlflow.db", "registry=null", "bundles=null"]
    assert main(["backup", kept, *places]) == 0
    shutil.rmtree(work)
    assert main(["restore", kept, *places]) == 0
    assert runs_of(work) == known != set()
    result = copy("run")
    assert worked(copy.output) == before
    assert result["devices"] == finished["devices"]

"""A command that is killed while MLflow makes its database leaves nothing that stops later ones."""

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
from alembic.script import ScriptDirectory

from flows.pipeline.tracking import start_tracking, tracker
from flows.pipeline.tracking.addresses import address_of
from tasks.base.errors import UserError

KILLED = """
import os, signal, sys
from alembic.runtime import migration
from flows.pipeline.tracking import start_tracking
from flows.pipeline.tracking.addresses import address_of

left = [int(sys.argv[2])]
made = migration.HeadMaintainer.update_to_step

def killed(self, step):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    made(self, step)

migration.HeadMaintainer.update_to_step = killed
start_tracking(address_of(sys.argv[1]), "tests", "k", "net")
"""
"""Killed when the tables of a migration are there, and its version is not yet."""


def half_made(file: Path) -> None:
    """A database with tables that its version does not tell of, as a kill leaves it."""
    made = file.with_suffix(".killed")
    tracker.made_whole(made)
    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    earlier = [one.revision for one in scripts.walk_revisions()][20]
    with closing(sqlite3.connect(made)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = ?", (earlier,))
        database.execute("DROP TABLE mcp_servers")
    made.rename(file)


def test_a_kill_in_the_migrations_harms_no_later_run(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    ended = subprocess.run([sys.executable, "-c", KILLED, uri, "20"], cwd=tmp_path)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "mlflow.db").exists(), "under its name it is whole"
    start_tracking(address_of(uri), "tests", "k", "net").end()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"], "what was left is removed"


def test_a_half_made_database_is_set_aside_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mlflow.db"
    half_made(file)
    start_tracking(address_of(f"sqlite:///{file}"), "tests", "k", "net").end()
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("tracking.uri"))
    assert "was left half-made by a run that was killed" in line
    assert str(tmp_path / "mlflow.db.half-made-1") in line
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlflow.db.half-made-1"}


def test_a_half_made_database_with_runs_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    half_made(file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO runs (run_uuid) VALUES ('r')")
    before = file.read_bytes()
    with pytest.raises(UserError, match="has runs and was left half-made"):
        start_tracking(address_of(f"sqlite:///{file}"), "tests", "k", "net")
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_database_of_a_newer_mlflow_stays(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    tracker.made_whole(file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    before = file.read_bytes()
    assert tracker.made_whole(file) is None
    assert file.read_bytes() == before

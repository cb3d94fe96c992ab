"""The commands of docs/operations.md bring everything back, by the real programs."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.operations.backups import run_shown
from tests.support.postgres import USER, postgres, programs

BINARIES = programs()
FOLDERS = ("outputs", "mlartifacts", "fleet/files")
DATABASES = ("mlflow.db", "fleet/fleet.db")
DIGESTS, CHECK = "> SHA256SUMS", "--check SHA256SUMS"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working folder with something of everything, small."""
    stage = tmp_path / "work/outputs/stages/base"
    for folder in (stage / "0a", stage / "0b.partial", *(tmp_path / "work" / name for name in FOLDERS)):
        folder.mkdir(parents=True, exist_ok=True)
    (stage / "0a/weights.safetensors").write_bytes(bytes(range(256)) * 64)
    (stage / "0b.partial/history.jsonl").write_text("{}\n")
    (tmp_path / "work/outputs/.lock").touch()
    (tmp_path / "work/mlartifacts/model.onnx").write_bytes(b"model")
    (tmp_path / "work/fleet/files" / ("ab" * 32)).write_bytes(b"bundle")
    for file in DATABASES:
        with closing(sqlite3.connect(tmp_path / "work" / file)) as database, database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE runs (name TEXT)")
            database.execute("INSERT INTO runs VALUES ('first')")
    return tmp_path / "work"


def content(place: Path) -> dict[str, tuple[bytes, int, int]]:
    """Finished files of the folders: their bytes, the time of their last change, and their permissions."""
    files = (file for name in FOLDERS for file in (place / name).rglob("*") if file.is_file())
    return {
        str(file.relative_to(place)): (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode)
        for file in files
        if file.name != ".lock" and ".partial" not in str(file)
    }


def rows(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return [name for (name,) in database.execute("SELECT name FROM runs")]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 program is installed")
def test_folders_and_files_of_databases_come_back_and_what_was_there_is_beside(place: Path) -> None:
    before, moved = content(place), {"/mnt/backups": str(place.parent / "kept")}
    with closing(sqlite3.connect(place / "mlflow.db")) as writer:  # whose last row is in mlflow.db-wal alone
        writer.execute("INSERT INTO runs VALUES ('second')")
        writer.commit()
        run_shown(place, ["sqlite3 mlflow.db", "python -c", DIGESTS], moved)
        (kept,) = (place.parent / "kept").iterdir()
        assert kept.stat().st_mode & 0o077 == 0
        writer.execute("INSERT INTO runs VALUES ('later')")
        writer.commit()
        (place / "mlartifacts/model.onnx").write_bytes(b"later")
        assert "whole" in run_shown(place, [CHECK, "mkdir before"], moved)
    assert content(place) == before
    assert rows(place / "mlflow.db") == ["first", "second"]
    assert rows(place / "fleet/fleet.db") == ["first"]
    assert not list(place.glob("outputs/stages/base/*.partial"))
    assert rows(place / "before/mlflow.db") == ["first", "second", "later"]
    assert (place / "before/mlartifacts/model.onnx").read_bytes() == b"later"

    archive = kept / "outputs.tar"
    archive.write_bytes(archive.read_bytes()[:-1] + b"\1")
    with pytest.raises(AssertionError, match="1 computed checksum did NOT match"):
        run_shown(place, [CHECK], moved)


@pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL server is installed")
def test_databases_of_postgresql_come_back_and_what_was_there_is_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BINARIES is not None
    monkeypatch.setenv("PATH", f"{BINARIES}:{os.environ['PATH']}")
    with postgres(BINARIES) as server:
        changes = {"/mnt/backups": str(tmp_path / "kept"), "autotailor@db": f"{USER}@127.0.0.1:{server.port}"}
        for name in ("mlflow", "fleet", "prefect"):
            server.database(name)
            server.ask(name, "CREATE TABLE runs (id SERIAL PRIMARY KEY, name TEXT UNIQUE)")
            server.ask(name, f"INSERT INTO runs (name) VALUES ('{name}')")
        run_shown(tmp_path, ["pg_dump", DIGESTS], changes, server.passwords)
        server.ask("mlflow", "CREATE TABLE later (x INT)")
        assert "whole" in run_shown(tmp_path, [CHECK, "pg_restore"], changes, server.passwords)
        for name in ("mlflow", "fleet", "prefect"):
            assert server.ask(name, "INSERT INTO runs (name) VALUES ('next') RETURNING id") == [2]
            assert server.ask(name, "SELECT name FROM runs ORDER BY id") == [name, "next"]
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        assert server.ask("mlflow", tables) == ["runs"]
        assert server.ask("mlflow_before", tables) == ["later", "runs"]

"""Databases of a real PostgreSQL server into a backup and back."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.support.postgres import USER, Postgres, postgres, programs

BINARIES = programs()
pytestmark = pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL server is installed")
OTHERS = ("output_dir=null", "registry=null", "bundles=null", "artifacts=null")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    assert BINARIES is not None
    with postgres(BINARIES) as found:
        yield found


def ask(server: Postgres, database: str, *statements: str) -> list[str]:
    assert BINARIES is not None
    words = [word for statement in statements for word in ("--command", statement)]
    address = f"postgresql://{USER}@127.0.0.1:{server.port}/{database}"
    command = [str(BINARIES / "psql"), "-qAt", "--set=ON_ERROR_STOP=1", f"--dbname={address}", *words]
    found = subprocess.run(
        command, env={"PGPASSFILE": str(server.passwords)}, capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def test_a_database_comes_back_whole_or_not_at_all(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(server.passwords))
    ask(server, "postgres", "CREATE DATABASE runs", "CREATE DATABASE other")
    made = ("CREATE EXTENSION pg_trgm", "CREATE TABLE runs (id SERIAL PRIMARY KEY, name TEXT UNIQUE)")
    ask(
        server,
        "runs",
        *made,
        "CREATE INDEX ON runs USING gin (name gin_trgm_ops)",
        "INSERT INTO runs (name) VALUES ('a')",
    )
    there = f"postgresql+psycopg://{USER}@127.0.0.1:{server.port}"
    assert main(["backup", "kept", f"mlflow={there}/runs", *OTHERS]) == 0
    assert main(["restore", "kept", f"mlflow={there}/other", *OTHERS]) == 0
    assert ask(server, "other", "INSERT INTO runs (name) VALUES ('b') RETURNING id") == ["2"]

    capsys.readouterr()
    ask(server, "other", "CREATE TABLE later (x INT)")
    assert main(["restore", "kept", f"mlflow={there}/other", *OTHERS]) == 2
    assert "has something in it; overwrite=true replaces it" in capsys.readouterr().err
    dump = next(path for path in (tmp_path / "kept/files").rglob("*") if path.is_file())
    whole = dump.read_bytes()
    dump.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["restore", "kept", f"mlflow={there}/other", "overwrite=true", *OTHERS]) == 2
    assert ask(server, "other", "SELECT name FROM runs ORDER BY id") == ["a", "b"]
    dump.write_bytes(whole)
    for _ in range(2):  # what was restored is restored over, too
        assert main(["restore", "kept", f"mlflow={there}/other", "overwrite=true", *OTHERS]) == 0
    assert ask(server, "other", "SELECT name FROM runs") == ["a"]
    assert ask(server, "other", "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == ["runs"]
    assert main(["backup", "again", f"mlflow={there}/other", *OTHERS]) == 0
    assert main(["restore", "again", f"mlflow={there}/runs", "overwrite=true", *OTHERS]) == 0
    assert ask(server, "runs", "SELECT name FROM runs") == ["a"]


def test_a_wrong_password_is_one_line_without_it(
    server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PGPASSFILE", raising=False)
    address = f"postgresql://{USER}:not-the-password@127.0.0.1:{server.port}/postgres"
    asked: list[list[str]] = []
    run = subprocess.run

    def remembered(words: list[str], **options: Any) -> Any:
        asked.append(words)
        return run(words, **options)

    monkeypatch.setattr(subprocess, "run", remembered)
    assert main(["backup", "kept", f"mlflow={address}", *OTHERS]) == 2
    told = capsys.readouterr().err
    assert "password authentication failed" in told
    assert told.count("\n") == 1
    assert "not-the-password" not in told
    assert asked
    assert not any("not-the-password" in word for words in asked for word in words)

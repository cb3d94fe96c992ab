"""Backups: what is in them, what they survive, and what is refused."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flows.cli import main
from tasks.base.artifacts import append_line
from tasks.operations.backup import BackupStore
from tests.support.docs.documents import ROOT

KEY = "0123456789abcdef"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with something of everything, small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    stage, partial = tmp_path / f"outputs/stages/base/{KEY}", tmp_path / f"outputs/stages/finetune/{KEY}.partial"
    for folder in (
        stage,
        partial,
        tmp_path / "outputs/luts/ncnn",
        tmp_path / "mlartifacts/0",
        tmp_path / "fleet/files",
    ):
        folder.mkdir(parents=True)
    (stage / "result.json").write_text("{}")
    (stage / "weights.safetensors").write_bytes(bytes(range(256)) * 64)
    append_line(partial / "history.jsonl", {"epoch": 1})
    (tmp_path / "outputs/.lock").touch()
    (tmp_path / "outputs/luts/ncnn/part-0.parquet").write_bytes(b"table")
    (tmp_path / "mlartifacts/0/weights.safetensors").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "fleet/files" / ("ab" * 32)).write_bytes(b"bundle")
    for file in ("mlflow.db", "fleet/fleet.db"):
        with closing(sqlite3.connect(tmp_path / file)) as database, database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE runs (name TEXT)")
            database.execute("INSERT INTO runs VALUES ('first')")
    return tmp_path


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Files with their content and the time of their last change, but for what is passing."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def rows(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return [name for (name,) in database.execute("SELECT name FROM runs")]


def stored(place: Path) -> list[Path]:
    return [path for path in (place / "kept/files").rglob("*") if path.is_file()]


def test_everything_comes_back_as_it_was(place: Path) -> None:
    before = {name: content(place / name) for name in ("outputs", "mlartifacts", "fleet/files")}
    with closing(sqlite3.connect(place / "mlflow.db")) as writer:  # whose last row is in mlflow.db-wal alone
        writer.execute("INSERT INTO runs VALUES ('second')")
        writer.commit()
        assert main(["backup", "kept"]) == 0
    for name in ("outputs", "mlartifacts", "fleet", "mlflow.db"):
        (place / name).rename(place / f"lost-{Path(name).name}")
    assert main(["restore", "kept"]) == 0
    assert {name: content(place / name) for name in before} == before
    assert rows(place / "mlflow.db") == ["first", "second"]
    assert rows(place / "fleet/fleet.db") == ["first"]
    assert (place / "kept").stat().st_mode & 0o077 == 0


def test_a_later_backup_adds_what_is_new_and_keep_leaves_the_latest(place: Path) -> None:
    assert main(["backup", "kept", "mlflow=null", "registry=null"]) == 0
    assert len(stored(place)) == 5
    (place / "outputs/luts/ncnn/part-1.parquet").write_bytes(b"more")
    (place / f"outputs/stages/base/{KEY}/result.json").unlink()
    assert main(["backup", "kept", "mlflow=null", "registry=null"]) == 0
    assert len(stored(place)) == 6
    assert main(["backup", "kept", "mlflow=null", "registry=null", "keep=1"]) == 0
    assert len(stored(place)) == 5
    assert len(BackupStore(place / "kept").names()) == 1
    assert main(["restore", "kept", "check=true"]) == 0


@pytest.mark.few("os.fsync")
@pytest.mark.parametrize("moment", ["os.fsync", "BackupStore.finish"])
def test_a_killed_backup_leaves_the_last_one_intact(place: Path, moment: str) -> None:
    assert main(["backup", "kept"]) == 0
    (place / "outputs/luts/ncnn/part-0.parquet").write_bytes(b"another table")
    script = (
        "import os, signal; from tasks.operations.backup import BackupStore; from flows.cli import main; "
        f"{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL); main(['backup', 'kept'])"
    )
    killed = subprocess.run([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    store = BackupStore(place / "kept")
    assert len(store.names()) == 1
    assert not list(store.damage(store.read()))
    assert main(["backup", "kept", "keep=1"]) == 0
    assert (
        main(
            [
                "restore",
                "kept",
                "output_dir=elsewhere",
                "mlflow=null",
                "artifacts=null",
                "registry=null",
                "bundles=null",
            ]
        )
        == 0
    )
    assert (place / "elsewhere/luts/ncnn/part-0.parquet").read_bytes() == b"another table"
    assert not list((place / "kept").rglob(".*"))  # nothing half written is left


def test_a_flipped_byte_is_found_and_restores_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "kept"]) == 0
    (place / "outputs").rename(place / "lost")
    weights = max(stored(place), key=lambda path: path.stat().st_size * (b"SQLite" not in path.read_bytes()[:16]))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    capsys.readouterr()
    for words in (["check=true"], ["mlflow=null", "registry=null", "overwrite=true"]):
        assert main(["restore", "kept", *words]) == 2
        told = capsys.readouterr().err
        assert "damaged" in told
        assert told.count("\n") == 1
    assert not (place / "outputs").exists()
    assert not list(place.glob(".*restoring"))
    assert main(["backup", "kept", "output_dir=lost"]) == 0  # which reads what it has, and mends it
    assert main(["restore", "kept", "check=true"]) == 0


def test_a_damaged_list_of_files_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "kept"]) == 0
    (manifest,) = (place / "kept/backups").glob("*.json")
    manifest.write_text(manifest.read_text().replace("weights", "heights"))
    assert main(["restore", "kept", "overwrite=true"]) == 2
    assert f"{manifest.name}': is damaged; make another one" in capsys.readouterr().err
    manifest.unlink()
    assert main(["restore", "kept"]) == 2
    assert "has no backup" in capsys.readouterr().err


def test_what_is_there_is_overwritten_only_when_told_and_stays_beside(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", "kept"]) == 0
    (place / "outputs/luts/ncnn/part-0.parquet").write_bytes(b"newer")
    with closing(sqlite3.connect(place / "mlflow.db")) as database:
        database.execute("INSERT INTO runs VALUES ('newer')")
        database.commit()
        capsys.readouterr()
        assert main(["restore", "kept"]) == 2
        told = capsys.readouterr().err
        assert "mlflow.db' has something in it; overwrite=true puts it aside, mlflow=ELSEWHERE leaves it" in told
        assert (place / "outputs/luts/ncnn/part-0.parquet").read_bytes() == b"newer"
        assert main(["restore", "kept", "overwrite=true"]) == 0
    assert (place / "outputs/luts/ncnn/part-0.parquet").read_bytes() == b"table"
    assert rows(place / "mlflow.db") == ["first"]
    (before,) = place.glob("outputs.before-*")
    assert (before / "luts/ncnn/part-0.parquet").read_bytes() == b"newer"
    (database_before,) = place.glob("mlflow.db.before-*Z")
    assert rows(database_before) == ["first", "newer"]


def test_what_a_run_works_in_is_kept_when_the_run_is_at_rest(place: Path) -> None:
    from flows.machine.locks import only_run

    store = BackupStore(place / "kept")
    partial = f"stages/finetune/{KEY}.partial/history.jsonl"
    with only_run(place / "outputs"):
        assert main(["backup", "kept"]) == 0
    assert partial not in store.read().parts["output_dir"].files
    assert main(["backup", "kept"]) == 0
    assert partial in store.read().parts["output_dir"].files


def test_secrets_are_kept_only_where_they_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "secrets").mkdir()
    (place / "secrets/token").write_text("0123456789abcdef" * 4)
    (place / "secrets/token").chmod(0o600)
    assert main(["backup", "kept"]) == 0
    assert "left out: keys=FOLDER keeps a folder of secrets" in capsys.readouterr().out
    assert not any(b"0123456789abcdef" * 4 in path.read_bytes() for path in stored(place))
    assert main(["backup", "kept", "keys=secrets"]) == 0
    others = [f"{part}=null" for part in ("output_dir", "mlflow", "artifacts", "registry", "bundles")]
    assert main(["restore", "kept", "keys=back", *others]) == 0
    assert (place / "back/token").read_text() == "0123456789abcdef" * 4
    assert (place / "back/token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["backup"], "backup: got 0 folders; allowed: one; write autotailor backup FOLDER"),
        (["backup", "kept", "output_dir=nowhere"], "output_dir: there is nothing at 'nowhere'; null leaves it out"),
        (["backup", "kept", "output_dir=s3://bucket/a"], "'s3://bucket/a' is no folder of this machine"),
        (
            ["backup", "kept", "registry=mysql://me:secret@db/fleet"],
            "registry: got 'mysql://me:***@db/fleet'; allowed: sqlite",
        ),
        (["backup", "kept", "at=monday"], "option 'at': is one of 'restore'"),
        (["backup", "outputs"], "folder 'outputs': has something else in it; name a new folder for backups"),
        (["restore", "nowhere"], "folder 'nowhere': has no backup; autotailor backup FOLDER makes one"),
        (["restore", "kept", "at=monday"], "at: 'monday' is no backup of 'kept'; allowed: 2"),
        (["restore", "kept", "keep=2"], "option 'keep': is one of 'backup'"),
        (["restore", "kept", "overwrite=true", "registry=postgresql://db/fleet"], "allowed: sqlite"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    place: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "restore":
        assert main(["backup", "kept"]) == 0
    capsys.readouterr()
    assert main(words) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1
    assert "secret" not in told


def test_links_and_pipes_are_refused_and_nothing_leads_out_of_a_folder(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pydantic import ValidationError

    from tasks.operations.backup import BackupPart

    (place / "outputs/luts/shared").symlink_to(place / "fleet")
    assert main(["backup", "kept"]) == 2
    assert "is a link, which a backup does not follow" in capsys.readouterr().err
    (place / "outputs/luts/shared").unlink()
    os.mkfifo(place / "outputs/luts/pipe")
    assert main(["backup", "kept"]) == 2
    assert "pipe': is no file" in capsys.readouterr().err
    kept = {"sha256": "ab" * 32, "size": 0, "mode": 0o644, "mtime_ns": 0}
    for name in ("../out", "/etc/passwd", "a/../../b", "", "a//b", "."):
        with pytest.raises(ValidationError, match="is no path inside a folder"):
            BackupPart.model_validate({"kind": "folder", "place": "x", "files": {name: kept}})


def test_the_defaults_in_conf_are_those_of_the_code() -> None:
    from flows.cli.operations.backup import BackupConfig
    from flows.config.compose import compose_config
    from flows.config.validate import validate

    composed = compose_config("backup", [])
    assert validate(BackupConfig, composed) == BackupConfig()
    assert set(composed) == set(BackupConfig.model_fields)

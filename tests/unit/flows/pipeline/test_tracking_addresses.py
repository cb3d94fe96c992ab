"""Where MLflow keeps runs: databases that are damaged, moved or copied, and servers that do not answer."""

import re
import shlex
import shutil
import time
from pathlib import Path

import click
import pytest
from mlflow.tracking._tracking_service.utils import _get_default_tracking_uri

from flows.pipeline.tracking import start_tracking
from flows.pipeline.tracking.addresses import TrackingAddress, address_of, path_of
from tasks.base.errors import UserError
from tests.support.docs.documents import ROOT
from tests.support.flows.tracking_addresses import WITHIN_S


def test_runs_of_all_output_folders_are_in_one_database_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert address_of(None) == TrackingAddress(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert address_of(None) == TrackingAddress("http://mlflow:5000", None)
    assert address_of("sqlite:///a/b.db") == TrackingAddress(
        f"sqlite:///{tmp_path}/a/b.db", tmp_path / "a" / "mlartifacts"
    )


def test_the_documented_command_of_mlflow_looks_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.cli import cli  # takes seconds

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (line,) = re.findall("^mlflow ui.*$", (ROOT / "docs" / "running.md").read_text(encoding="utf-8"), re.MULTILINE)
    name, command, words = cli.resolve_command(click.Context(cli), shlex.split(line)[1:])
    assert command is not None
    found = command.make_context(name, words).params
    assert (found["host"], found["backend_store_uri"]) == ("127.0.0.1", None)
    assert address_of(_get_default_tracking_uri()) == address_of(None)


@pytest.mark.few("overwritten")
@pytest.mark.parametrize("damage", ["overwritten", "torn"])
def test_a_damaged_database_is_one_line_at_once(tmp_path: Path, damage: str) -> None:
    address = address_of(f"sqlite:///{tmp_path}/mlflow.db")
    start_tracking(address, "tests", "k", "net").end()
    file = tmp_path / "mlflow.db"
    content = file.read_bytes()
    file.write_bytes(b"x" * 4096 + content[4096:] if damage == "overwritten" else content[: len(content) // 2])
    started = time.monotonic()
    with pytest.raises(UserError, match=r"MLflow's database '.*mlflow\.db': cannot be used \(.*\); move it away"):
        start_tracking(address, "tests", "k", "net")
    assert time.monotonic() - started < WITHIN_S


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its folder does not exist; make it"):
        start_tracking(address_of(f"sqlite:///{tmp_path}/nowhere/mlflow.db"), "tests", "k", "net")


@pytest.mark.long
def test_a_copied_folder_keeps_its_artifacts_in_the_copy(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "a copy"
    original.mkdir()
    (tmp_path / "front.json").write_text("{}")
    first = start_tracking(address_of(f"sqlite:///{original}/mlflow.db"), "tests", "k", "net")
    first.log_artifact(first.run_id, tmp_path, "front.json")
    first.register("net", first.run_id, "front.json", "d")
    first.end()
    shutil.copytree(original, copy)
    before = sorted(original.rglob("*"))

    second = start_tracking(address_of(f"sqlite:///{copy}/mlflow.db"), "tests", "k2", "net")
    second.log_artifact(second.run_id, tmp_path, "front.json")
    for run_id in (first.run_id, second.run_id):
        folder = path_of(second.client.get_run(run_id).info.artifact_uri)
        assert folder.is_relative_to(copy / "mlartifacts")
        assert (folder / "front.json").exists()
    (version,) = second.client.search_model_versions("name = 'net'")
    assert version.source is not None
    assert path_of(version.source).is_relative_to(copy)
    assert sorted(original.rglob("*")) == before
    assert path_of(first.client.get_run(first.run_id).info.artifact_uri).is_relative_to(original)


@pytest.mark.long
def test_a_database_that_was_copied_alone_leaves_earlier_artifacts_where_they_are(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    copy.mkdir()
    (tmp_path / "front.json").write_text("{}")
    first = start_tracking(address_of(f"sqlite:///{original}/mlflow.db"), "tests", "k", "net")
    first.log_artifact(first.run_id, tmp_path, "front.json")
    shutil.copy(original / "mlflow.db", copy)
    second = start_tracking(address_of(f"sqlite:///{copy}/mlflow.db"), "tests", "k2", "net")
    folders = [path_of(second.client.get_run(run_id).info.artifact_uri) for run_id in (first.run_id, second.run_id)]
    assert (folders[0] / "front.json").exists()
    assert folders[0].is_relative_to(original)
    assert folders[1].is_relative_to(copy)

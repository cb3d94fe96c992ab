"""A run whose output folder is at a URL: another machine goes on from there and repeats nothing."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.storage import local_folder
from flows.storage.objects import open_objects
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY
from tests.support.storage.server import S3, SECRET

LEFT_OUT = ("search", "export")


@dataclass(frozen=True)
class Machine:
    """A machine with a cache folder of its own, empty at first."""

    url: str
    home: Path

    @contextmanager
    def here(self) -> Iterator[Path]:
        """This process is on the machine; its copy of the output folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(self.home / "cache"))
            yield local_folder(self.url)

    def __call__(self, command: str, *words: str) -> dict[str, Any]:
        """The JSON result of a command that succeeds."""
        file, tracking = self.home / "result.json", f"tracking.uri={database_in(self.home)}"
        with self.here():
            assert main([command, *TINY, f"output_dir={self.url}", tracking, *words, "--json", str(file)]) == 0
        result: dict[str, Any] = json.loads(file.read_text())
        return result


@pytest.fixture(scope="module")
def first(finished: dict[str, Any], command: Command, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine that works. The stages before the search are taken from another run: they stand for hours."""
    machine = Machine(f"{s3.url}/runs/a", tmp_path_factory.mktemp("first"))
    with machine.here() as output:
        shutil.copytree(command.output, output, ignore=shutil.ignore_patterns(*LEFT_OUT, ".lock", "exports"))
    return machine


@pytest.fixture(scope="module")
def worked(first: Machine) -> dict[str, Any]:
    return first("run")


@pytest.fixture
def another(worked: dict[str, Any], first: Machine, tmp_path: Path) -> Machine:
    return Machine(first.url, tmp_path)


def test_what_a_machine_has_worked_is_at_the_url(worked: dict[str, Any], first: Machine, command: Command) -> None:
    assert [row["stage"].split("/")[0] for row in worked["stages"] if not row["cached"]] == list(LEFT_OUT)
    storage = open_objects(first.url)
    assert all(len(storage.names(f"stages/{row['stage']}")) == 1 for row in worked["stages"])
    assert len(storage.names("luts")) == len(list(command.output.glob("luts/*/part-*.parquet"))) > 0
    assert any(name.endswith(".jsonl") for name in storage.names("subnets"))
    assert b"<html" in (storage.read("report.html") or b"")[:200]
    assert storage.names("exports") == ["exports/onnxruntime.json"]
    assert not any(SECRET.encode() in (storage.read(name) or b"") for name in storage.names("runs"))


def test_another_machine_repeats_nothing(worked: dict[str, Any], another: Machine, s3: S3) -> None:
    before = s3.written()
    foreseen = another("run", "--dry-run")["dry_run"]
    assert {row["state"] for row in foreseen if row["stage"] != "report"} == {"complete"}
    assert s3.written() == before, "a dry run writes nothing"
    result = another("run")
    assert all(row["cached"] for row in result["stages"])
    assert [row["stage"] for row in result["stages"]] == [row["stage"] for row in worked["stages"]]
    assert len(result["devices"][0]["winners"]) == len(worked["devices"][0]["winners"]) > 0
    assert not any(part in name for name in s3.written()[len(before) :] for part in ("/stages/", "/luts/", "/files/"))
    with another.here() as output:
        assert Path(result["exports"]["onnxruntime"]).is_relative_to(output)


def test_tables_come_for_commands_of_their_own(
    another: Machine, first: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    file, place = another.home / "tables.json", f"output_dir={first.url}"
    with another.here():
        assert main(["lut", "show", place, "--json", str(file)]) == 0
        assert json.loads(file.read_text())["tables"][0]["entries"] > 0
        assert main(["lut", "compact", place]) == 2
    assert "are never rewritten, since other machines have them; allowed: a folder" in capsys.readouterr().err

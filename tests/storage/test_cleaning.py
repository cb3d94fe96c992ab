"""Contents at a URL that no folder refers to go, and nothing that somebody refers to does, whoever publishes meanwhile."""

import json
import threading
import time
from pathlib import Path

import pytest

from flows.cli import main
from flows.storage import manifests
from flows.storage.cleaning import Cleaner
from flows.storage.objects import Objects, open_objects
from tasks.artifacts.digests import FileDigest, FolderRecord
from tasks.errors import UserError
from tests.storage.machine import NAME, Machine, contents, fill
from tests.threads import beside

HOUR_S = 3600.0


def cleaner(machine: Machine, *, hours: float, older_than_h: float = 0.0) -> Cleaner:
    """That of a machine, so many hours later."""
    return Cleaner(machine.mirror, HOUR_S * older_than_h, clock=lambda: time.time() + HOUR_S * hours)


def marked(url: str, folder: Path) -> Machine:
    """A machine with an output folder at a URL."""
    machine = Machine(url, folder)
    machine.mirror.check()
    return machine


def left_over(storage: Objects, folder: Path) -> str:
    """A file of the stage, at the URL since an upload that nobody went on with; its name there."""
    folder.mkdir()
    fill(folder)
    name = f"files/{FileDigest.of(folder / 'front.json').sha256}"
    storage.upload(folder / "front.json", name)
    return name


def test_what_no_folder_refers_to_goes_once_it_is_old(url: str, tmp_path: Path) -> None:
    first, storage = marked(url, tmp_path / "1"), open_objects(url)
    first.work()
    replaced = set(storage.names("files"))
    first.work(seed=1, anew=True)
    (tmp_path / "1" / "exports" / "board").mkdir(parents=True)
    (tmp_path / "1" / "exports" / "board" / "net.onnx").write_bytes(b"net")
    first.mirror.publish_results(["exports/board"], [])
    storage.write("files/notes.txt", b"somebody's own")
    whole = set(storage.names("files"))

    found = cleaner(first, hours=1, older_than_h=2).look()
    assert (len(found.used), set(found.recent), dict(found.unused)) == (4, replaced, {})
    found = cleaner(first, hours=3, older_than_h=2).look()
    assert (set(found.unused), dict(found.recent)) == (replaced, {})
    assert set(storage.names("files")) == whole, "looking removes nothing"
    assert set(cleaner(first, hours=3, older_than_h=2).remove(print).unused) == replaced
    assert set(storage.names("files")) == whole - replaced
    assert storage.names("publishing") == []

    other = Machine(url, tmp_path / "2")
    assert contents(other.work()) == contents(tmp_path / "1" / NAME)
    assert other.works == 0
    assert other.mirror.fetch("exports/board")


def test_a_file_that_was_left_over_stays_while_a_stage_that_has_it_is_published(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "AT_ONCE", 1)  # files one after the other: the left over one is found first
    first, other = marked(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2")
    storage, upload = open_objects(bucket), first.mirror.objects.upload
    kept, gone = left_over(storage, tmp_path / "torn"), f"files/{'0' * 64}"
    storage.write(gone, b"of nobody")

    def cleaned(file: Path, name: str) -> None:
        if storage.size(gone) is not None:
            cleaner(other, hours=1).remove(print)
        upload(file, name)

    monkeypatch.setattr(first.mirror.objects, "upload", cleaned)
    whole = contents(first.work())
    assert storage.size(gone) is None, "in the midst of publishing"
    assert kept in storage.names("files")
    assert contents(other.work()) == whole
    assert other.works == 0


def test_whoever_publishes_waits_for_a_removal_and_then_brings_what_has_gone(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = marked(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2")
    storage, remove = open_objects(bucket), other.mirror.objects.remove
    left_over(storage, tmp_path / "torn")
    removes, waits = threading.Event(), threading.Event()

    def hears(line: str) -> None:
        first.said.append(line)
        waits.set()

    def removing(name: str) -> None:
        if name.startswith("files/"):
            removes.set()
            assert waits.wait(60)
        remove(name)

    monkeypatch.setattr(other.mirror.objects, "remove", removing)
    first.hears = hears
    with beside(lambda: cleaner(other, hours=1).remove(print)):
        assert removes.wait(60)
        whole = contents(first.work())
    assert first.said[0].startswith("waits for process ")
    third = Machine(bucket, tmp_path / "3")
    assert contents(third.work()) == whole
    assert third.works == 0


def test_a_stage_that_is_replaced_while_it_comes_is_brought_as_it_is_then(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "AT_ONCE", 1)
    first, reader = marked(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2")
    first.work()
    download = reader.mirror.objects.download

    def replaced(name: str, file: Path) -> bool:
        if first.works == 1:
            first.work(seed=1, anew=True)
            cleaner(first, hours=1).remove(print)
        return download(name, file)

    monkeypatch.setattr(reader.mirror.objects, "download", replaced)
    assert contents(reader.work()) == contents(tmp_path / "1" / NAME)
    assert reader.works == 0
    assert open_objects(bucket).names("damaged") == []


def test_what_a_publisher_that_died_has_left_counts_for_a_day(bucket: str, tmp_path: Path) -> None:
    machine, storage = marked(bucket, tmp_path / "1"), open_objects(bucket)
    name = left_over(storage, tmp_path / "torn")
    storage.write("publishing/0.json", FolderRecord.of(tmp_path / "torn").content())
    assert set(cleaner(machine, hours=23).remove(print).used) == {name}
    assert set(cleaner(machine, hours=25).remove(print).unused) == {name}
    assert storage.names("files") == storage.names("publishing") == []


def test_a_record_that_cannot_be_read_may_refer_to_anything(bucket: str, tmp_path: Path) -> None:
    machine, storage = Machine(bucket, tmp_path / "1"), open_objects(bucket)
    name = left_over(storage, tmp_path / "torn")
    with pytest.raises(UserError, match=r"has no output folder of AutoTailor; write output_dir=URL as runs have it"):
        cleaner(machine, hours=1).remove(print)
    machine.mirror.check()
    storage.write(f"{NAME}.json", b"{")
    line = rf"the record of {NAME} cannot be read; the next run that needs this folder sets it aside"
    with pytest.raises(UserError, match=line):
        cleaner(machine, hours=1).remove(print)
    assert storage.names("files") == [name]


def test_the_command_removes_only_where_it_is_told_to(
    bucket: str, own_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, file = marked(bucket, tmp_path / "1"), tmp_path / "found.json"
    size = len((machine.work() / "front.json").read_bytes())
    name = left_over(machine.mirror.objects, tmp_path / "torn")
    machine.mirror.objects.write(f"files/{'0' * 64}", bytes(3 * 2**20))
    command = ["clean", f"output_dir={bucket}", "--json", str(file)]
    assert main(command) == 0
    assert json.loads(file.read_text())["recent"] == {"files": 1, "bytes": 3 * 2**20}
    assert main([*command, "older_than_h=0"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "unused 1 3.0 nothing refers to them: remove=true removes them" in shown
    assert main([*command, "older_than_h=0", "remove=true"]) == 0
    told = json.loads(file.read_text())
    assert told["removed"] == {"files": 1, "bytes": 3 * 2**20}
    assert told["used"]["files"] == len(machine.mirror.objects.names("files")) == 3
    assert machine.mirror.objects.size(name) == size


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "output_dir: 'outputs' is a folder of this machine; allowed: a URL that machines share"),
        (
            ["s3://bucket/a"],
            "clean: got 's3://bucket/a'; allowed: options alone; write autotailor clean output_dir=URL",
        ),
        (["output_dir=s3://b/a", "older_than_h=-1"], "older_than_h: got -1; allowed: 0 or more"),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", *words]) == 2
    assert line in capsys.readouterr().err

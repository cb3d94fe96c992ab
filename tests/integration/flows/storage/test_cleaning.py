"""What is left at a URL goes, and nothing that somebody refers to or works at does, whoever publishes meanwhile."""

import json
import threading
import time
from pathlib import Path

import pytest

from flows.cli import main
from flows.storage import publishing
from flows.storage.cleaning import ContentCleaner, Leftover, LeftoverState, UrlCleaner
from flows.storage.objects import Objects, open_objects
from flows.storage.sharing import LIST_FILE, StageList
from tasks.base.artifacts.folders import FileDigest, FolderRecord
from tasks.base.errors import UserError
from tests.support.storage.machine import NAME, STAGE, Machine, contents, fill, learning
from tests.support.threads import beside

HOUR_S = 3600.0
LEASE_S = 8.0
"""Long enough for a sign of life on a busy machine: one is due after each third of it."""


def cleaner(machine: Machine, *, hours: float, older_than_h: float = 0.0) -> ContentCleaner:
    """That of a machine, so many hours later."""
    return ContentCleaner(machine.mirror, HOUR_S * older_than_h, clock=lambda: time.time() + HOUR_S * hours)


def named(found: list[Leftover], state: LeftoverState) -> set[str]:
    """Names of what is in a state."""
    return {one.name for one in found if one.state == state}


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
    assert (len(named(found, "used")), named(found, "recent"), named(found, "old")) == (4, replaced, set())
    found = cleaner(first, hours=3, older_than_h=2).look()
    assert (named(found, "old"), named(found, "recent")) == (replaced, set())
    assert set(storage.names("files")) == whole, "looking removes nothing"
    assert named(cleaner(first, hours=3, older_than_h=2).remove(print), "removed") == replaced
    assert set(storage.names("files")) == whole - replaced
    assert storage.names("publishing") == []

    other = Machine(url, tmp_path / "2")
    assert contents(other.work()) == contents(tmp_path / "1" / NAME)
    assert other.works == 0
    assert other.mirror.fetch("exports/board")


def test_a_file_that_was_left_over_stays_while_a_stage_that_has_it_is_published(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "AT_ONCE", 1)  # files one after the other: the left over one is found first
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
    monkeypatch.setattr(publishing, "AT_ONCE", 1)
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
    assert named(cleaner(machine, hours=23).remove(print), "used") == {name}
    assert named(cleaner(machine, hours=25).remove(print), "removed") == {name}
    assert storage.names("files") == storage.names("publishing") == []


def test_a_record_that_cannot_be_read_may_refer_to_anything(bucket: str, tmp_path: Path) -> None:
    machine, storage = Machine(bucket, tmp_path / "1"), open_objects(bucket)
    name = left_over(storage, tmp_path / "torn")
    with pytest.raises(UserError, match=r"has no output folder of AutoTailor; write output_dir=URL as runs have it"):
        cleaner(machine, hours=1).remove(print)
    machine.mirror.check()
    storage.write(f"{NAME}.json", b"{")
    line = rf"the record of {NAME} cannot be read; the next run that needs this folder quarantines it"
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

    def rows() -> dict[tuple[str, str], tuple[int, int]]:
        found = json.loads(file.read_text())["found"]
        return {(row["kind"], row["state"]): (row["count"], row["bytes"]) for row in found}

    assert main(command) == 0
    assert rows()["contents", "recent"] == (1, 3 * 2**20)
    assert main([*command, "older_than_days=0"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "contents old 1 3.0 0.0 of files at the URL; remove=true removes them" in shown
    assert main([*command, "older_than_days=0", "remove=true"]) == 0
    assert rows()["contents", "removed"] == (1, 3 * 2**20)
    assert rows()["contents", "used"][0] == len(machine.mirror.objects.names("files")) == 3
    assert machine.mirror.objects.size(name) == size


@pytest.mark.long
def test_an_unfinished_stage_stays_while_its_machine_lives_and_goes_once_that_is_killed(
    bucket: str, tmp_path: Path
) -> None:
    machine, storage = marked(bucket, tmp_path / "1"), open_objects(bucket)
    storage.write(f"damaged/{'0' * 64}", b"of a bad disk")
    with learning(bucket, tmp_path / "2", LEASE_S):
        found = UrlCleaner(machine.mirror, 0.0).remove(machine.hears)
        assert (named(found, "at work"), named(found, "removed")) == ({f"unfinished/{NAME}"}, {f"damaged/{'0' * 64}"})
        assert machine.said == [f"waits {LEASE_S:.0f} s for a sign of life of whoever may work at 1 stages"]
    whole = storage.names("unfinished")
    assert named(UrlCleaner(machine.mirror, 24 * HOUR_S).remove(machine.hears), "recent") == {f"unfinished/{NAME}"}
    assert storage.names("unfinished") == whole != []
    assert named(UrlCleaner(machine.mirror, 0.0).remove(machine.hears), "removed") == {f"unfinished/{NAME}"}
    assert storage.names("unfinished") == []


def test_a_stage_goes_with_its_contents_once_no_run_refers_to_it(bucket: str, tmp_path: Path) -> None:
    machine, other, storage = marked(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2"), open_objects(bucket)
    machine.work()
    run = machine.mirror.folder / "runs" / "a"
    run.mkdir(parents=True)
    listed, cleans = StageList(run), UrlCleaner(machine.mirror, 0.0, stages=True)
    listed.add("/".join(STAGE))
    machine.mirror.publish_results([], [f"runs/a/{LIST_FILE}"])
    assert NAME in named(cleans.remove(machine.hears), "used")
    assert other.work().exists()
    assert other.works == 0

    listed.keep([])
    machine.mirror.publish_results([], [f"runs/a/{LIST_FILE}"])
    assert {one.kind for one in cleans.remove(machine.hears) if one.state == "removed"} == {"stages", "contents"}
    assert storage.names("files") == storage.names("stages") == []
    third = Machine(bucket, tmp_path / "3")
    third.work()
    assert third.works == 1, "it is worked again"
    storage.write("runs/b/config.yaml", b"of an earlier version")
    with pytest.raises(
        UserError, match=r"runs/b': does not tell its stages: an earlier version made it; give its command"
    ):
        cleans.look()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "output folder 'outputs': has no 'stages'; write output_dir=FOLDER as runs have it"),
        (
            ["s3://bucket/a"],
            "clean: got 's3://bucket/a'; allowed: options alone; write autotailor clean output_dir=s3://bucket/a",
        ),
        (["output_dir=s3://b/a", "older_than_days=-1"], "older_than_days: got -1; allowed: 0 or more"),
        (["older_than_days=a week"], "older_than_days: got 'a week'; allowed: a number"),
        (["stages=some"], "stages: got 'some'; allowed: true or false"),
        (
            ["output_dir=memory://a", "locks=postgresql://db/locks"],
            "locks: is of a folder on a disk that workers share; allowed: null; leave it out",
        ),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["clean", *words]) == 2
    assert line in capsys.readouterr().err

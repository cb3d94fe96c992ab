"""Stages at a URL: whole or not there, worked by one machine, brought once, and gone on with elsewhere."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from flows.storage import publishing
from flows.storage.leases import BEATS, Holding
from flows.storage.mirror import Mirror
from flows.storage.objects import open_objects
from tasks.base.artifacts import append_line, damage, read_lines
from tasks.base.errors import UserError
from tests.support.storage.machine import NAME, STAGE, Machine, contents, learning
from tests.support.storage.server import S3

LEASE_SECONDS = 8.0
"""Long enough for a busy machine, short enough to wait for."""


def test_a_finished_stage_comes_to_another_machine_and_is_not_worked_again(url: str, tmp_path: Path) -> None:
    first, second = Machine(url, tmp_path / "1"), Machine(url, tmp_path / "2")
    whole = contents(first.work())
    assert contents(second.work()) == whole
    assert (first.works, second.works) == (1, 0)
    assert damage(tmp_path / "2" / NAME) is None
    assert [path.name for path in (tmp_path / "2" / NAME).parent.iterdir()] == [STAGE[1]]


def test_nothing_is_moved_twice_and_a_stage_anew_takes_the_place_of_the_former(
    s3: S3, bucket: str, tmp_path: Path
) -> None:
    first, second = Machine(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2")
    first.work()
    before = s3.written()
    assert sum("/files/" in name for name in before if name.startswith(bucket.rpartition("/")[2])) == 3
    first.work()
    second.work()
    assert s3.written() == before
    first.work(seed=1, anew=True)
    third = Machine(bucket, tmp_path / "3")
    assert contents(third.work())["front.json"] == contents(tmp_path / "1" / NAME)["front.json"]
    assert third.works == 0


DYING = """
import os, sys
from pathlib import Path
from tests.support.storage.machine import Machine
machine = Machine(sys.argv[1], Path(sys.argv[2]))
upload, left = machine.mirror.objects.upload, [int(sys.argv[3])]
def dying(file, name):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    upload(file, name)
machine.mirror.objects.upload = dying
from flows.storage import publishing
publishing.AT_ONCE = 1
machine.work()
"""


def test_a_torn_upload_is_no_stage_and_goes_on_from_there(s3: S3, bucket: str, tmp_path: Path) -> None:
    files = 2
    command = [sys.executable, "-c", DYING, bucket, str(tmp_path / "1"), str(files)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    storage = open_objects(bucket)
    assert len(storage.names("files")) == files
    assert not publishing.is_there(storage, NAME)
    assert not Mirror(storage, tmp_path / "2").fetch(NAME)
    first = Machine(bucket, tmp_path / "1")
    before = len(s3.written())
    whole = contents(first.work())
    assert first.works == 0, "it was complete here"
    new = [name for name in s3.written()[before:] if "/publishing/" not in name]
    assert len(new) == 3 - files + 1, "the files that were missing, and the record"
    assert contents(Machine(bucket, tmp_path / "2").work()) == whole


def test_a_damaged_object_is_set_aside_and_the_stage_worked_again(url: str, tmp_path: Path) -> None:
    first = Machine(url, tmp_path / "1")
    whole = contents(first.work())
    storage = first.mirror.objects
    (largest,) = {name for name in storage.names("files") if (storage.size(name) or 0) > 100_000}
    content = storage.read(largest) or b""
    storage.write(largest, b"?" + content[1:])
    second = Machine(url, tmp_path / "2")
    assert contents(second.work()).keys() == whole.keys()
    assert second.works == 1
    assert storage.read(largest) == content
    assert storage.names("damaged") == [f"damaged/{largest.partition('/')[2]}", f"damaged/{NAME}.json"]
    assert contents(Machine(url, tmp_path / "3").work()) == contents(tmp_path / "2" / NAME)


@pytest.mark.parametrize("name", ["../../out", "/out", "a/../../out", ""])
def test_a_record_whose_names_lead_out_of_the_folder_is_no_record(name: str, bucket: str, tmp_path: Path) -> None:
    machine = Machine(bucket, tmp_path / "1")
    sha256 = "0" * 64
    text = f'{{"version": 1, "files": {{"{name}": {{"size": 1, "sha256": "{sha256}"}}}}}}'
    machine.mirror.objects.write(f"files/{sha256}", b"x")
    machine.mirror.objects.write(f"{NAME}.json", text.encode())
    assert not machine.mirror.fetch(NAME)
    assert not list(tmp_path.rglob("out"))


def test_a_full_storage_is_one_line_and_the_next_run_goes_on(s3: S3, bucket: str, tmp_path: Path) -> None:
    machine = Machine(bucket, tmp_path / "1")

    line = r"is full \(An error .*QuotaExceeded.* no room is left\); make room; the same command goes on"
    with ExitStack() as stack, pytest.raises(UserError, match=line):
        machine.work(then=lambda: stack.enter_context(s3.full()))
    machine.work()
    assert machine.works == 1
    other = Machine(bucket, tmp_path / "2")
    assert contents(other.work()) == contents(tmp_path / "1" / NAME)
    assert other.works == 0


WORKER = """
import sys
from pathlib import Path
from tests.support.storage.machine import Machine, fill
from tests.integration.flows.storage.test_shared_stages import LEASE_SECONDS
machine = Machine(sys.argv[1], Path(sys.argv[2]), LEASE_SECONDS)
machine.hears = lambda line: print(line, flush=True)
with machine.turn() as folder:
    print("works" if not folder.complete else "complete", flush=True)
    sys.stdin.readline()
    fill(folder.path)
    folder.publish({"accuracy": 0.5})
"""


def start(url: str, folder: Path) -> "subprocess.Popen[str]":
    """A process that works the stage until it gets a line."""
    command = [sys.executable, "-c", WORKER, url, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def heard(machine: Machine, process: "subprocess.Popen[str]", line: str) -> None:
    """The machine hears a line, and the process gets its own."""
    machine.said.append(line)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_one_machine_works_a_stage_and_another_one_takes_over_once_it_is_killed(bucket: str, tmp_path: Path) -> None:
    storage, lock = open_objects(bucket), f"locks/{NAME}/000001.json"
    third = Machine(bucket, tmp_path / "3", LEASE_SECONDS)
    with start(bucket, tmp_path / "1") as killed:
        assert said(killed) == "works"
        with start(bucket, tmp_path / "2") as other:
            assert f"waits for process {killed.pid} of " in said(other)
            while Holding.model_validate_json(storage.read(lock) or b"").beat <= BEATS:
                time.sleep(0.1)
            assert storage.names("locks") == [lock], "the holder lives: nobody has taken its place after a lease"
            killed.kill()
            assert said(other) == "works"
            third.hears = partial(heard, third, other)
            third.work()
            assert other.wait(300) == 0
    assert third.works == 0
    assert f"waits for process {other.pid} of " in third.said[0]


def test_what_a_killed_machine_had_is_gone_on_with_by_another_one(bucket: str, tmp_path: Path) -> None:
    storage = open_objects(bucket)
    with learning(bucket, tmp_path / "1", lease_s=1.0):
        pass  # and it is killed
    own = [line["step"] for line in read_lines(tmp_path / "1" / f"{NAME}.partial" / "history.jsonl")]
    with suppress(ZeroDivisionError), Machine(bucket, tmp_path / "2").turn() as folder:
        steps = [line["step"] for line in read_lines(folder.path / "history.jsonl")]
        last = int((folder.path / "checkpoint.safetensors").read_text())
        append_line(folder.path / "history.jsonl", {"step": -1})
        _ = 1 / 0  # it ends by an error, and leaves what it has
    assert steps == [*range(len(steps))]
    assert 0 < len(steps) <= len(own)
    assert last in (len(steps) - 1, len(steps) - 2), "files and lines are of one moment"
    assert f"unfinished/{NAME}/2.json" in storage.names(f"unfinished/{NAME}")
    assert not storage.names(f"unfinished/{NAME}/1")

    first = Machine(bucket, tmp_path / "1")
    with first.turn() as folder:
        assert [line["step"] for line in read_lines(folder.path / "history.jsonl")] == [*steps, -1]
        folder.publish({"steps": len(steps)})
    assert "goes on from what another machine has left" in first.said
    assert not storage.names("unfinished")

"""Look-up tables and measured SubNets at a URL: many write, nobody waits, and no row is lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.operations.nightly.record import changed_inputs, changed_stages, table_differences
from flows.pipeline.devices import Devices
from flows.pipeline.run import Surroundings
from flows.storage.mirror import SharedLines, shared_nights, shared_tables
from flows.storage.objects import open_objects
from tasks.base.artifacts import Store, SubNetStore, append_line, read_lines
from tasks.base.progress import Silent
from tasks.measuring.lut import LutStore, table
from tasks.measuring.profile import LUT_FOLDER
from tasks.operations.nightly.records import History, StageNight
from tests.support.damage import flip
from tests.support.nights.made_nights import nights
from tests.support.storage.machine import STAGE, Machine
from tests.support.storage.server import S3
from tests.support.tables.lut_entries import DEVICE, entry

WRITERS = 4
ROUNDS = 4
KEY = {"supernet": "abc"}
WRITER = """
import sys
from pathlib import Path
from flows.storage.mirror import SharedLines, shared_tables
from flows.storage.objects import open_objects
from tasks.measuring.lut import LutStore
from tests.integration.flows.storage.test_shared_measurements import ROUNDS, measure
from tests.support.tables.lut_entries import DEVICE, entry
url, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
tables = shared_tables(open_objects(url), "luts", folder / "luts")
lines = SharedLines(open_objects(url), "subnets", folder / "subnets")
for number in range(ROUNDS):
    tables.fetch()
    lines.fetch()
    LutStore(folder / "luts").open(DEVICE).append([entry(f"{name}-{number}-{index}") for index in range(3)])
    measure(folder / "subnets", f"{name}-{number}")
    tables.publish()
    lines.publish()
"""


def measure(folder: Path, digest: str) -> None:
    """One more measured SubNet in a store."""
    file = SubNetStore(folder).open(KEY, Silent())
    assert file is not None
    append_line(file, {"digest": digest, "measured": {"key": digest, "p50_ms": 1.5}})


def measured(folder: Path) -> list[str]:
    """The SubNets in a store, in order."""
    file = SubNetStore(folder).open(KEY, Silent())
    assert file is not None
    return [line["digest"] for line in read_lines(file)]


@pytest.mark.long
def test_rows_and_lines_of_many_writers_are_all_there_and_none_is_rewritten(
    s3: S3, bucket: str, tmp_path: Path
) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, bucket, str(tmp_path / str(number)), f"w{number}"])
        for number in range(WRITERS)
    ]
    assert [process.wait(300) for process in processes] == [0] * WRITERS
    own = [
        name for name in s3.written() if name.startswith(bucket.rpartition("/")[2]) and not name.endswith("key.json")
    ]
    assert len(own) == len(set(own)) == 2 * WRITERS * ROUNDS

    tables = shared_tables(open_objects(bucket), "luts", tmp_path / "new" / "luts")
    assert tables.fetch() == WRITERS * ROUNDS
    names = {f"w{writer}-{number}" for writer in range(WRITERS) for number in range(ROUNDS)}
    found = LutStore(tmp_path / "new" / "luts").open(DEVICE).entries()
    assert {one.digest for one in found} == {f"{name}-{index}" for name in names for index in range(3)}

    lines = SharedLines(open_objects(bucket), "subnets", tmp_path / "new" / "subnets")
    assert lines.fetch() == WRITERS * ROUNDS
    assert sorted(measured(tmp_path / "new" / "subnets")) == sorted(names)
    assert tables.fetch() == tables.publish() == lines.fetch() == lines.publish() == 0


def test_a_damaged_part_is_measured_again_and_is_not_brought_again(url: str, tmp_path: Path) -> None:
    LutStore(tmp_path / "1").open(DEVICE).append([entry("a")])
    shared_tables(open_objects(url), "luts", tmp_path / "1").publish()
    tables = shared_tables(open_objects(url), "luts", tmp_path / "2")
    assert tables.fetch() == 1
    (part,) = (tmp_path / "2").glob(f"*/{table.PARTS}")
    flip(part)
    store = LutStore(tmp_path / "2")
    assert "is damaged: quarantined as" in next(store.mend(DEVICE))
    assert tables.fetch() == 0
    store.open(DEVICE).append([entry("a", p50_ms=3.0)])
    assert tables.publish() == 1
    assert shared_tables(open_objects(url), "", tmp_path / "3").fetch() == 0, (
        "tables of a folder above are not of the URL"
    )
    assert shared_tables(open_objects(f"{url}/luts"), "", tmp_path / "3").fetch() == 2


def test_nights_of_two_machines_are_one_history(url: str, tmp_path: Path) -> None:
    storage, records = open_objects(url), nights(3, seed=0)
    for number, record in enumerate(records):
        folder = tmp_path / str(number % 2)
        shared = shared_nights(storage, "nights", folder)
        assert shared.fetch() == min(number, 1)
        History(folder).add(record)
        assert shared.publish() == 1
    storage.write("nights/..json", b"{}")
    assert shared_nights(storage, "nights", tmp_path / "new").fetch() == len(records)
    assert History(tmp_path / "new").nights(records[0].network, lambda line: None) == records


def test_the_next_night_on_another_machine_tells_what_changed(bucket: str, tmp_path: Path) -> None:
    first, second = Machine(bucket, tmp_path / "1"), Machine(bucket, tmp_path / "2")
    (name, key), other = STAGE, "fedcba9876543210"
    stage = StageNight(
        stage=name, key=key, code="c", needs=(), devices=("ncnn",), worked=True, seconds=1.0, settings={"repeats": 3}
    )
    before, now = nights(2, seed=0)
    before = before.model_copy(update={"settings": {"search": {"budget_count": 10}}, "stages": (stage,)})
    with first.turn() as folder:
        LutStore(folder.path / LUT_FOLDER).open(DEVICE).append([entry("a", p50_ms=1.0)])
        folder.publish({})
    History(tmp_path / "1" / "nights").add(before)
    first.mirror.nights.publish()

    second.mirror.nights.fetch()
    (found,) = History(tmp_path / "2" / "nights").nights(before.network, pytest.fail)
    assert found == before
    folder = Store(tmp_path / "2" / "stages").open_stage(name, other)
    LutStore(folder.path / LUT_FOLDER).open(DEVICE).append([entry("a", p50_ms=2.0)])
    folder.publish({})
    changed = stage.model_copy(update={"key": other, "settings": {"repeats": 5}})
    now = now.model_copy(update={"settings": {"search": {"budget_count": 11}}, "stages": (changed,)})
    assert changed_inputs(found, now) == ["setting search.budget_count 10 → 11"]
    assert [tuple(one) for one in changed_stages(found, now)] == [(name, True, ("setting repeats 3 → 5",))]
    with Devices({}) as devices:
        around = Surroundings(Store(tmp_path / "2" / "stages"), devices, mirror=second.mirror)
        assert table_differences(found, now, around)["board"]["all"]["median_ratio"] == pytest.approx(2.0)


def test_a_damaged_piece_of_lines_is_left_out(url: str, tmp_path: Path) -> None:
    storage = open_objects(url)
    for digest in "ab":
        measure(tmp_path / digest, digest)
        SharedLines(storage, "subnets", tmp_path / digest).publish()
    piece = next(name for name in storage.names("subnets") if name.endswith(".jsonl"))
    content = storage.read(piece) or b""
    storage.write(piece, content.replace(b"1.5", b"9.5"))
    lines = SharedLines(storage, "subnets", tmp_path / "new")
    assert lines.fetch() == 1
    assert len(measured(tmp_path / "new")) == 1
    storage.write(piece, content)
    assert lines.fetch() == 1
    assert sorted(measured(tmp_path / "new")) == ["a", "b"]

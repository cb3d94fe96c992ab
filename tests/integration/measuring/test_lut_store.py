"""A store of look-up tables is written by many at once, compacted while others read, and merged, and loses nothing."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.base.errors import UserError
from tasks.measuring.lut import Lut, LutStore, table
from tests.support.damage import DAMAGES, Damage, delete
from tests.support.tables.lut_entries import DEVICE, EARLY, LATE, entry, failed

OTHER = replace(DEVICE, backend="onnxruntime", build="def", fingerprint="f1")
SCRIPT = """
    import sys
    from pathlib import Path
    sys.path[:0] = sys.argv[3:]
    from tests.support.tables.lut_entries import DEVICE, entry
    from tasks.measuring.lut import LutStore, table
    folder, name = Path(sys.argv[1]), sys.argv[2]
"""
APPEND = (
    SCRIPT
    + """
    lut = LutStore(folder).open(DEVICE)
    for number in range(40):
        lut.append([entry(f"{name}-{number}-{index}") for index in range(5)])
        print(number, flush=True)
"""
)
COMPACT = (
    SCRIPT
    + """
    while True:
        print(*table.compact(folder / DEVICE.name), flush=True)
"""
)


def process(script: str, folder: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder), name, *sys.path]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def digests(store: LutStore) -> set[str]:
    return {one.digest for one in store.open(DEVICE).entries()}


def test_devices_have_a_folder_each_and_are_opened_by_what_they_are(tmp_path: Path) -> None:
    store = LutStore(tmp_path)
    store.open(DEVICE).append([entry("a")])
    store.open(OTHER).append([entry("a", p50_ms=2.0), entry("b")])
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted([DEVICE.name, OTHER.name])
    assert DEVICE.name.startswith("ncnn-fp32-1t-")
    found = store.open(DEVICE).get("a")
    assert found is not None
    assert found.p50_ms == 0.5
    assert digests(store) == {"a"}
    assert replace(DEVICE, description="the same").name == DEVICE.name != replace(DEVICE, build="b").name


def test_processes_append_at_once_while_one_compacts_and_another_reads(tmp_path: Path) -> None:
    store = LutStore(tmp_path)
    store.open(DEVICE).append([entry("first")])
    compactors = [process(COMPACT, tmp_path, "") for _ in range(2)]
    writers = [process(APPEND, tmp_path, name) for name in "xy"]
    seen: set[str] = set()
    try:
        while any(writer.poll() is None for writer in writers):
            found = digests(store)
            assert seen <= found, "an entry that was there is gone"
            seen = found
        assert [writer.wait() for writer in writers] == [0, 0]
        assert all(compactor.poll() is None for compactor in compactors), "a compaction failed"
    finally:
        for child in (*writers, *compactors):
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
    assert digests(store) == {"first"} | {f"{n}-{i}-{j}" for n in "xy" for i in range(40) for j in range(5)}
    assert table.compact(tmp_path / DEVICE.name)[1] == 401
    assert len(list((tmp_path / DEVICE.name).glob("part-*"))) == 1  # killed compactors may leave a hidden one


def test_compaction_keeps_the_latest_of_each_operator_method_and_settings(tmp_path: Path) -> None:
    store = LutStore(tmp_path)
    kept = [
        entry("a", p50_ms=0.7, measured_at=LATE),
        entry("a", method="in situ"),
        entry("a", settings="{}"),
        failed("b", measured_at=LATE),
    ]
    for one in (*kept, entry("a"), entry("b")):
        store.open(DEVICE).append([one])
    store.open(OTHER).append([entry("c")])
    before = sorted(map(str, store.rows()))
    assert sorted(store.compact()) == sorted([(DEVICE.name, 6, 4), (OTHER.name, 1, 1)])
    assert sorted(map(str, store.rows())) == before
    assert len(before) == 5
    assert [len(list(folder.iterdir())) for folder in store.folders()] == [1, 1]


@pytest.mark.long
def test_a_compaction_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL at different points of it."""
    store = LutStore(tmp_path)
    for number in range(6):
        lut = store.open(DEVICE)
        for index in range(20):
            lut.append([entry(f"{number}-{index}")])
        child = process(COMPACT, tmp_path, "")
        before, until = set(os.listdir(lut.folder)), time.monotonic() + 60
        while set(os.listdir(lut.folder)) == before and time.monotonic() < until:
            pass  # until its temporary file or its part is there
        time.sleep(0.0003 * number)  # then some parts are removed, then all, then it begins again
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
        assert len(digests(store)) == 20 * (number + 1)


def test_a_compaction_leaves_a_table_alone_in_which_a_part_is_damaged(tmp_path: Path) -> None:
    lut = LutStore(tmp_path).open(DEVICE)
    lut.append([entry("a")])
    lut.append([entry("b")])
    last = max(lut.folder.iterdir())
    last.write_bytes(last.read_bytes()[:80])
    before = {path: path.read_bytes() for path in lut.folder.iterdir()}
    with pytest.raises(UserError, match=f"{last.name}.*cannot be read"):
        table.compact(lut.folder)
    assert {path: path.read_bytes() for path in lut.folder.iterdir()} == before


def test_a_compaction_removes_what_killed_writers_left_and_passes_over_files_that_go_away(tmp_path: Path) -> None:
    lut = LutStore(tmp_path).open(DEVICE)
    lut.append([entry("a")])
    old, young, gone = (lut.folder / f".part-{name}.parquet.1.tmp" for name in ("old", "young", "gone"))
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (0, 0))
    gone.symlink_to("nowhere")  # listed, and not there when one looks
    assert table.compact(lut.folder) == (1, 1)
    assert set(lut.folder.glob(".*")) == {young, gone}
    assert digests(LutStore(tmp_path)) == {"a"}


def test_merging_takes_what_is_new_or_later_and_twice_is_once(tmp_path: Path) -> None:
    here, board, lab = (LutStore(tmp_path / name) for name in ("here", "board", "lab"))
    here.open(DEVICE).append([entry("a"), entry("b", measured_at=LATE)])
    board.open(DEVICE).append([entry("a", p50_ms=0.9, measured_at=LATE), entry("b", p50_ms=0.9), entry("c")])
    lab.open(OTHER).append([entry("a")])
    assert here.merge([board, lab]) == {DEVICE.name: 2, OTHER.name: 1}
    lut = here.open(DEVICE)
    assert [one and one.p50_ms for one in map(lut.get, "abc")] == [0.9, 0.5, 0.5]
    assert here.open(OTHER).get("a") == entry("a")
    assert here.merge([board, lab]) == {}
    empty = LutStore(tmp_path / "empty")
    assert empty.merge([here]) == {DEVICE.name: 3, OTHER.name: 1}
    assert sorted(map(str, empty.rows())) == sorted(map(str, here.rows()))


def test_a_source_without_a_table_or_with_a_bad_entry_is_refused_and_nothing_is_merged(tmp_path: Path) -> None:
    good, bad, here = (LutStore(tmp_path / name) for name in ("good", "bad", "here"))
    good.open(DEVICE).append([entry("a")])
    bad.open(DEVICE).append([entry("b")])
    row = bad.rows()[0]
    table.write(tmp_path / "bad" / DEVICE.name, [row | {"p50_ms": 0.0, "measured_at": LATE}])
    with pytest.raises(UserError, match=r"LUT entry of Conv b: p50_ms = 0\.0"):
        here.merge([good, bad])
    with pytest.raises(UserError, match=r"nowhere': holds no look-up table; autotailor profile"):
        here.merge([good, LutStore(tmp_path / "nowhere")])
    assert not here.root.exists()


def test_a_stages_own_table_is_a_store_of_one(tmp_path: Path) -> None:
    lut = LutStore(tmp_path / "luts").open(DEVICE)
    lut.append([entry("a"), entry("b")])
    lut.snapshot(tmp_path / "stage", ["a"])
    assert [row["digest"] for row in LutStore(tmp_path / "stage").rows()] == ["a"]
    target = LutStore(tmp_path / "merged")
    assert target.merge([LutStore(tmp_path / "stage")]) == {DEVICE.name: 1}
    found = Lut.open(target.root / DEVICE.name).get("a")
    assert found is not None
    assert found.measured_at == EARLY


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage is not delete])
def test_a_damaged_part_is_set_aside_and_the_others_are_used(tmp_path: Path, damage: Damage) -> None:
    store = LutStore(tmp_path)
    store.open(DEVICE).append([entry("a")])
    (first,) = (tmp_path / DEVICE.name).glob("part-*.parquet")
    store.open(DEVICE).append([entry("b")])
    damage(first)
    with pytest.raises(UserError, match=f"{first.name}.*cannot be read"):
        store.open(DEVICE)
    (line,) = store.mend(DEVICE)
    assert f"quarantined as '{first}.damaged', its operators are measured again" in line
    assert digests(store) == {"b"}
    assert list(store.mend(DEVICE)) == []

"""Stored folders are believed only as they were stored; what a stage goes on from is checked, too."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.base.artifacts import Store, append_line, read_lines, write_json
from tasks.base.artifacts.folders import DIGESTS_FILE
from tasks.base.errors import UserError
from tests.support.damage import DAMAGES, Damage, delete, empty, flip, truncate

RESULT = {"accuracy": 0.5}
FILES = ("result.json", "front.json", "weights.safetensors", "supernet/net.json", "history.jsonl", DIGESTS_FILE)


def work(store: Store) -> Path:
    """A stage's folder as it is published."""
    folder = store.open_stage("search/board", "key")
    assert not folder.complete
    (folder.path / "supernet").mkdir(exist_ok=True)
    write_json(folder.path / "front.json", {"winners": [1, 2, 3]})
    write_json(folder.path / "supernet" / "net.json", {"nodes": list(range(20))})
    save_file({"weight": np.arange(100, dtype=np.float32)}, folder.path / "weights.safetensors")
    append_line(folder.path / "history.jsonl", {"step": 1})
    return folder.publish(RESULT)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_what_is_whole_is_used_without_a_word(tmp_path: Path) -> None:
    final = work(Store(tmp_path))
    before = contents(final)
    folder = Store(tmp_path).open_stage("search/board", "key")
    assert folder.complete
    assert folder.mended == ()
    assert folder.result() == RESULT
    assert contents(final) == before
    assert set(before) == set(FILES)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_folder_is_set_aside_with_one_line_and_made_again(tmp_path: Path, file: str, damage: Damage) -> None:
    store = Store(tmp_path)
    final = work(store)
    whole = contents(final)
    damage(final / file)
    damaged = contents(final)
    folder = store.open_stage("search/board", "key")
    (line,) = folder.mended
    assert file in line or file == DIGESTS_FILE
    assert f"quarantined as '{final}.damaged-1' and made again" in line
    assert not folder.complete
    assert contents(final.with_name("key.damaged-1")) == damaged
    assert contents(work(store)) == whole
    assert store.open_stage("search/board", "key").complete


def test_a_folder_that_is_damaged_again_is_kept_beside_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2, 3):
        final = work(store)
        flip(final / "front.json")
        assert f"damaged-{number}" in store.open_stage("search/board", "key").mended[0]
    assert sorted(path.name for path in final.parent.iterdir()) == [
        "key.damaged-1",
        "key.damaged-2",
        "key.damaged-3",
        "key.partial",
    ]


def test_equal_size_and_time_of_change_hide_no_flipped_bit(tmp_path: Path) -> None:

    file = work(Store(tmp_path)) / "weights.safetensors"
    before = file.stat()
    flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    assert "weights.safetensors has another content" in Store(tmp_path).open_stage("search/board", "key").mended[0]


def test_a_folder_that_is_worked_anew_is_replaced_without_a_word(tmp_path: Path) -> None:
    flip(work(Store(tmp_path)) / "front.json")
    folder = Store(tmp_path).open_stage("search/board", "key", anew=True)
    assert folder.mended == ()
    folder.publish(RESULT)
    assert [path.name for path in (tmp_path / "search" / "board").iterdir()] == ["key"]


def lines_of(folder: Path) -> Path:
    file = folder / "timed" / "lines.jsonl"
    file.parent.mkdir()
    for step in range(1, 6):
        append_line(file, {"step": step, "ms": step / 3, "who": "Ω"})
    return file


def garble_third(content: bytes) -> bytes:
    """One digit of a number, which is still JSON."""
    return content.replace(b'"step": 3', b'"step": 7')


def join_two(content: bytes) -> bytes:
    return content.replace(b"\n", b" ", 1)


def other_shape(content: bytes) -> bytes:
    return b'[1, 2]\n"text"\nnull\n' + content


def no_text(content: bytes) -> bytes:
    return content.replace("Ω".encode(), b"\xff\xfe", 1)


@pytest.mark.parametrize(
    ("garble", "kept", "count"),
    [
        (garble_third, [1, 2, 4, 5], 1),
        (join_two, [3, 4, 5], 1),
        (other_shape, [1, 2, 3, 4, 5], 3),
        (no_text, [2, 3, 4, 5], 1),
    ],
)
def test_damaged_lines_are_left_out_with_one_line(
    tmp_path: Path, garble: Callable[[bytes], bytes], kept: list[int], count: int
) -> None:
    store = Store(tmp_path)
    file = lines_of(store.open_stage("profile", "key").path)
    damaged = garble(file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(UserError, match=r"lines\.jsonl': line \d of \d is damaged"):
        read_lines(file)
    (line,) = store.open_stage("profile", "key").mended
    assert line.startswith(f"{count} lines of lines.jsonl are damaged: quarantined as")
    assert (tmp_path / "profile" / "key.damaged-1" / "lines.jsonl").read_bytes() == damaged
    assert [one["step"] for one in read_lines(file)] == kept
    append_line(file, {"step": 6})
    assert store.open_stage("profile", "key").mended == ()
    assert [one["step"] for one in read_lines(file)] == [*kept, 6]


@pytest.mark.parametrize("damage", [truncate, empty, delete])
def test_lines_that_are_lost_at_the_end_are_worked_again_without_a_word(tmp_path: Path, damage: Damage) -> None:
    """As after a kill."""
    store = Store(tmp_path)
    file = lines_of(store.open_stage("profile", "key").path)
    damage(file)
    assert store.open_stage("profile", "key").mended == ()
    kept: list[Any] = read_lines(file)
    assert [one["step"] for one in kept] == list(range(1, len(kept) + 1))
    assert len(kept) < 5
    append_line(file, {"step": 9})
    assert read_lines(file) == [*kept, {"step": 9}]

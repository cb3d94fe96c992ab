"""Measured SubNets: what one stage has measured in the same way is not measured by another."""

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.base.artifacts import SubNetLines, SubNetStore, append_line, read_json, read_lines
from tasks.base.progress import Silent
from tests.support.damage import flip

KEY = {"measured": "latency", "device": "board"}


def line(digest: str, ms: float) -> dict[str, Any]:
    return {"key": digest, "p50_ms": ms}


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def opened(folder: Path, own: str, *, anew: bool = False, key: dict[str, Any] = KEY, code: str = "1") -> SubNetLines:
    """The lines of one stage, which shares them with others of the same store."""
    store = SubNetStore(folder / "store", code, "digits")
    return SubNetLines(folder / own, "key", store.open(key, Silent()), anew)


@pytest.fixture
def refined(tmp_path: Path) -> SubNetLines:
    """The lines of a stage that has measured three SubNets, one of them twice and one in vain."""
    lines = opened(tmp_path, "refine.jsonl")
    for one in (line("a", 1.0), line("b", 2.0), line("a", 1.1)):
        lines.append(one)
    lines.append({"key": "c", "p50_ms": None}, shared=False)
    return lines


def test_lines_of_other_stages_are_taken_over_once_for_subnets_that_are_asked_for(
    refined: SubNetLines, tmp_path: Path
) -> None:
    export = opened(tmp_path, "export.jsonl")
    assert export.read(["a", "c"]) == [line("a", 1.0), line("a", 1.1)]
    assert export.read(["a", "b"]) == [line("a", 1.0), line("a", 1.1), line("b", 2.0)] == read_lines(export.own)
    export.append(line("b", 2.2))
    assert export.read(["a", "b"])[3:] == [line("b", 2.2)]
    assert refined.read(["b"]) == read_lines(refined.own)  # its own count, not what came after them
    again = opened(tmp_path, "again.jsonl")
    assert again.read(["b"]) == [line("b", 2.0), line("b", 2.2)]


@pytest.mark.usefixtures("refined")
def test_a_stage_that_measures_anew_takes_nothing_over_and_tells_others(tmp_path: Path) -> None:
    anew = opened(tmp_path, "compared.jsonl", anew=True)
    assert anew.read(["a"]) == []
    anew.append(line("a", 3.0))
    assert anew.read(["a"]) == [line("a", 3.0)]
    assert [one["p50_ms"] for one in opened(tmp_path, "x.jsonl").read(["a"])] == [1.0, 1.1, 3.0]


@pytest.mark.usefixtures("refined")
@pytest.mark.parametrize("other", [{"key": KEY | {"device": "phone"}}, {"code": "2"}])
def test_what_was_measured_otherwise_is_not_known(tmp_path: Path, other: dict[str, Any]) -> None:
    assert opened(tmp_path, "other.jsonl", **other).read(["a"]) == []
    keys = [read_json(file) for file in (tmp_path / "store").glob("*/key.json")]
    assert KEY | {"code": "1", "data": "digits"} in keys
    assert len(keys) == 2


def test_without_a_store_a_stage_has_its_own_lines(tmp_path: Path) -> None:
    own = SubNetLines(tmp_path / "own.jsonl", "digest", SubNetStore().open(KEY, Silent()))
    own.append({"digest": "a", "correct": 3})
    assert own.read(["a", "b"]) == [{"digest": "a", "correct": 3}]
    assert [file.name for file in tmp_path.iterdir()] == ["own.jsonl"]


def test_damaged_records_are_set_aside_with_one_line(refined: SubNetLines, tmp_path: Path) -> None:
    assert refined.shared is not None
    flip(refined.shared, 0.5)  # the second of three
    heard = Heard()
    shared = SubNetStore(tmp_path / "store", "1", "digits").open(KEY, heard)
    (said,) = heard.lines
    assert "measured SubNets: 1 lines of subnets.jsonl are damaged: quarantined as" in said
    assert SubNetLines(tmp_path / "next.jsonl", "key", shared).read(["a", "b"]) == [line("a", 1.0), line("a", 1.1)]


def test_stages_of_two_devices_append_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "subnets.jsonl"
    append_line(file, line("a", 1.0))
    with file.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(b'{"half a ')
        held.flush()
        other = threading.Thread(target=append_line, args=(file, line("b", 2.0)))
        other.start()
        other.join(0.1)
        assert other.is_alive()
        held.truncate(held.tell() - len(b'{"half a '))
    other.join(60)
    assert read_lines(file) == [line("a", 1.0), line("b", 2.0)]

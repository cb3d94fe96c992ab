"""Following a history that a killed run left longer than its checkpoint, and that ranks rewind when they start again."""

from pathlib import Path

import pytest

from tasks.base.artifacts import append_line, line_of, read_lines
from tasks.training.finetune.checkpoint import Tail, rewind


def write(history: Path, *steps: int, note: str = "") -> None:
    for step in steps:
        append_line(history, {"step": step, "note": note})


def steps(lines: list[dict[str, int]]) -> list[int]:
    return [line["step"] for line in lines]


def test_rewinding_keeps_what_the_checkpoint_holds(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    rewind(history, 0)
    assert read_lines(history) == []
    write(history, 1, 2, 3)
    with history.open("a") as stream:
        stream.write('{"step": 4, "no')
    rewind(history, 2)
    assert steps(read_lines(history)) == [1, 2]
    assert history.read_text().endswith("\n")


@pytest.mark.parametrize("note", ["", "a longer line than before", "x"])
def test_every_step_comes_once_also_when_ranks_start_again(tmp_path: Path, note: str) -> None:
    """Even if the history has grown beyond its old end again since it was last looked at."""
    history = tmp_path / "history.jsonl"
    tail = Tail(history, 0)
    assert tail.new() == []
    write(history, 1, 2, 3, 4, note="first")
    assert steps(tail.new()) == [1, 2, 3, 4]
    rewind(history, 2)
    write(history, 3, 4, 5, 6, note=note)
    assert steps(tail.new()) == [5, 6]
    assert tail.new() == []


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    tail = Tail(history, 1)
    write(history, 1, 2)
    line = line_of({"step": 3, "note": "x"}).encode()
    with history.open("ab") as stream:
        stream.write(line[:15])
        stream.flush()
        assert steps(tail.new()) == [2]
        stream.write(line[15:])
    assert steps(tail.new()) == [3]

"""What is left in an output folder goes once it is old, and nothing that a run is at, refers to, or did not make does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.storage.cleaning import FolderCleaner
from flows.storage.sharing import LIST_FILE, StageList
from tasks.base.artifacts import Store, quarantine, write_bytes
from tasks.base.errors import UserError
from tasks.operations.nightly.records import History, StageNight
from tests.support.nights.made_nights import night

DAY_S = 24 * 3600.0
PLACE = "stages/profile/board"


def key(letter: str) -> str:
    """A key as stages have it."""
    return 16 * letter


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def stage(output: Path) -> Callable[..., Path]:
    """Makes the folder of a stage, so many days old: published, or as a run that was killed leaves it."""

    def make(letter: str, *, published: bool = True, days: float = 0.0) -> Path:
        folder = Store(output / "stages").open_stage("profile/board", key(letter))
        write_bytes(folder.path / "table.parquet", bytes(2**20))
        return aged(folder.publish({}) if published else folder.path, days)

    return make


def aged(path: Path, days: float) -> Path:
    """The same, so many days old."""
    written_s = time.time() - DAY_S * days
    for one in (*path.rglob("*"), path):
        os.utime(one, (written_s, written_s))
    return path


def cleaned(output: Path, *words: str) -> dict[tuple[str, str], tuple[int, float]]:
    """How many there are of each kind in each state, and their MiB, by the command."""
    file = output.with_name("cleaned.json")
    assert main(["clean", f"output_dir={output}", *words, "--json", str(file)]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())["found"]
    return {(row["kind"], row["state"]): (row["count"], round(row["bytes"] / 2**20, 2)) for row in rows}


def names(output: Path) -> set[str]:
    """Of the folders that the stage has."""
    return {path.name for path in (output / PLACE).iterdir()}


def test_what_killed_runs_and_damage_have_left_goes_once_it_is_old(
    output: Path, stage: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stage("a", days=9)
    stage("b", published=False, days=9)
    stage("c", published=False, days=6)
    aged(quarantine(stage("d"), output / PLACE / key("d")), 9)
    replaced = stage("e", days=9)
    replaced.rename(replaced.with_name(f"{replaced.name}.old"))
    own = stage("f", published=False, days=9)
    own.rename(own.with_name("mine.partial"))
    part = output / "luts" / "board" / "part-0.parquet.damaged"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"torn")
    aged(part, 9)

    before = names(output)
    found = {("unfinished", "old"): (2, 2.0), ("unfinished", "recent"): (1, 1.0), ("damaged", "old"): (2, 1.0)}
    assert cleaned(output) == found
    assert names(output) == before
    shown = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "unfinished old 2 2.0 9.0 stages that killed runs were at; remove=true removes them" in shown
    gone = {("unfinished", "removed"): (2, 2.0), ("unfinished", "recent"): (1, 1.0), ("damaged", "removed"): (2, 1.0)}
    assert cleaned(output, "remove=true") == gone
    assert names(output) == {key("a"), f"{key('c')}.partial", "mine.partial"}
    assert not part.exists()
    assert cleaned(output, "older_than_days=5", "remove=true") == {("unfinished", "removed"): (1, 1.0)}
    assert cleaned(output, "older_than_days=0") == {}


RUN = """
import sys
from pathlib import Path
from flows.machine import only_run
from tasks.base.artifacts import Store, append_line
with only_run(Path(sys.argv[1])):
    folder = Store(Path(sys.argv[1]) / "stages").open_stage("finetune", sys.argv[2])
    append_line(folder.path / "history.jsonl", {"epoch": 1})
    print("works", flush=True)
    sys.stdin.read()
"""


def test_the_unfinished_stage_of_a_run_stays_until_the_run_is_killed(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished, now = output / "stages" / "finetune" / f"{key('a')}.partial", "older_than_days=0"
    command, pipe = [sys.executable, "-c", RUN, str(output), key("a")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "works\n"
        assert main(["clean", f"output_dir={output}", now, "remove=true"]) == 2
        assert f"output folder '{output}': is in use by another run" in capsys.readouterr().err
        assert cleaned(output, now).keys() == {("unfinished", "old")}
        assert unfinished.exists()
        run.kill()
    assert cleaned(output, now, "remove=true").keys() == {("unfinished", "removed")}
    assert not unfinished.exists()


def test_complete_stages_go_once_no_run_and_no_latest_night_refers_to_them(
    output: Path, stage: Callable[..., Path]
) -> None:
    for letter in "abcde":
        stage(letter, days=9)
    (output / "runs" / "r").mkdir(parents=True)
    listed, history = StageList(output / "runs" / "r"), History(output / "nights")
    assert listed.add(f"profile/board/{key('a')}", f"profile/board/{key('e')}")
    assert not listed.add(f"profile/board/{key('a')}")
    listed.keep([f"profile/board/{key('a')}"])
    for number, (letter, network) in enumerate((("b", "net"), ("c", "net"), ("d", "another"))):
        made = StageNight(
            stage="profile/board", key=key(letter), code="c", needs=(), devices=(), worked=True, seconds=1.0
        )
        history.add(night(number, {}, stages=(made,), network=network))

    assert cleaned(output, "remove=true") == {}, "nobody asked for stages"
    assert cleaned(output, "stages=true") == {("stages", "used"): (3, 3.0), ("stages", "old"): (2, 2.0)}
    assert cleaned(output, "stages=true", "remove=true").keys() == {("stages", "used"), ("stages", "removed")}
    assert names(output) == {key("a"), key("c"), key("d")}

    cleaner = FolderCleaner(output, 0.0, stages=True)
    listed.file.write_text("{")
    with pytest.raises(UserError, match=rf"runs/r': its list of stages cannot be read; remove {LIST_FILE} there"):
        cleaner.look()
    listed.file.unlink()
    with pytest.raises(UserError, match=r"runs/r': does not tell its stages: an earlier version made it"):
        cleaner.remove(print)
    assert names(output) == {key("a"), key("c"), key("d")}

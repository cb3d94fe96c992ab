"""Nights as people have them: the command, night after night in one output folder, while something changes in between.

`python -m benchmarks.nightly_runs [--preset quick] [--devices onnxruntime ncnn] [--work DIR]`. The first night works all.
Then nothing changes; a setting of the search; the training; and at last a device on which some operators take longer, as after
another firmware. The last is made in the records of the nights before, where five operators of one device are said to have been
faster: what a night measures is not touched. Prints what each night worked, what it found, and how many messages it sent.
With --work the output folder stays, with the records of the nights.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tables import show
from tasks.base.artifacts import read_json, write_json
from tests.support.webhook import webhook

SLOWED, FACTOR = 5, 1.5
"""Operators that take longer on the last night, and how many times as long."""
LIMIT_S = 1200.0
HEADS = ("night", "what changed before", "stages worked", "why", "time, s", "the line", "messages")


class Change(NamedTuple):
    """What is different from a night on."""

    what: str
    words: tuple[str, ...] = ()


CHANGES = (
    Change("nothing is there"),
    Change("nothing"),
    Change("search.budget_count=14", ("search.budget_count=14",)),
    Change("finetune.epochs=4", ("finetune.epochs=4",)),
    Change("nothing"),
    Change(f"{SLOWED} operators × {FACTOR:g}"),
)
TRAINING = CHANGES[3:5]


def work(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """The JSON result of a night, worked by the command line."""
    result, log = folder / "night.json", folder / "night.log"
    result.unlink(missing_ok=True)
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(folder / "cache")}
    places = [f"output_dir={folder / 'out'}", f"tracking.uri=sqlite:///{folder}/mlflow.db"]
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "flows.cli", "nightly", *words, *places, "--json", str(result)]
        done = subprocess.run(command, stdout=stream, stderr=stream, cwd=folder, env=environment, timeout=LIMIT_S)
    assert done.returncode in (0, 3), log.read_text()[-2000:]
    found: dict[str, Any] = read_json(result)
    return found


def slow_down(folder: Path, device: str) -> set[str]:
    """Say of some operators that they were faster on all nights before; their digests."""
    files = sorted((folder / "out" / "nights").glob("*.json"))
    records = [read_json(file) for file in files]
    timed = [one for one in records[-1]["devices"][device]["times"]["operators"] if len(one["rounds_ms"]) >= 3]
    chosen = {one["digest"] for one in timed[:: max(1, len(timed) // SLOWED)][:SLOWED]}
    for file, record in zip(files, records, strict=True):
        for one in record["devices"][device]["times"]["operators"]:
            if one["digest"] in chosen:
                one["rounds_ms"] = [ms / FACTOR for ms in one["rounds_ms"]]
        write_json(file, record)
    return chosen


def _row(number: int, change: Change, result: dict[str, Any], seconds: float, posted: int) -> list[str]:
    worked = [row["stage"] for row in result["stages"] if not row["cached"]]
    told = result["nightly"]
    reasons = [f"{row['stage']}: {', '.join(row['why'])}" for row in told["stages"] if row["worked"]]
    line = told["line"].partition("; see ")[0].partition("; trends")[0]
    return [
        str(number),
        change.what,
        f"{len(worked)} of {len(result['stages'])}",
        "; ".join(reasons) or "–",
        f"{seconds:.0f}",
        line,
        str(posted),
    ]


def main() -> None:
    """Work the nights, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--devices", nargs="+", default=["onnxruntime", "ncnn"])
    parser.add_argument("--work", type=Path, help="a new folder for what the nights write; without it that is removed")
    parser.add_argument("--without-training", action="store_true", help="leave out the night with other training")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    changes = [one for one in CHANGES if not given.without_training or all(one is not left for left in TRAINING)]
    posted: list[dict[str, Any]] = []
    rows = []
    with ExitStack() as held:
        url = held.enter_context(webhook(posted))
        folder = given.work or Path(held.enter_context(tempfile.TemporaryDirectory(prefix="nights-")))
        folder.mkdir(parents=True, exist_ok=not given.work)
        (folder / "cache").mkdir()
        (folder / "url").write_text(url)
        words = [f"+preset={given.preset}", f"device=[{','.join(given.devices)}]", f"nightly.webhook_file={folder}/url"]
        for number, change in enumerate(changes, 1):
            words += change.words
            slowed = slow_down(folder, given.devices[-1]) if change is CHANGES[-1] else set()
            before, began = len(posted), time.monotonic()
            result = work(folder, words)
            rows.append(_row(number, change, result, time.monotonic() - began, len(posted) - before))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    found = {(one["device"], one["name"]) for one in result["nightly"]["findings"]}
    right = len(found & {(given.devices[-1], digest) for digest in slowed})
    show(HEADS, rows, markdown=given.markdown)
    print(f"of {len(slowed)} operators that are slower {right} are named, and {len(found) - right} other findings")


if __name__ == "__main__":
    main()

"""CPU time until a command is refused, and of a run in which all is complete: user and system, with and without children.

python -m benchmarks.start_up [--complete] [--rounds N] [--markdown]: the smallest of N rounds. --complete: works the preset
`quick` first, which takes minutes, and times the same command again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import show

ROOT = Path(__file__).resolve().parents[1]
BAR_S, COMPLETE_BAR_S = 2.0, 5.0
REFUSED = {
    "misspelt key": ("run", "mdel.name=resnet18"),
    "wrong model path": ("run", "model=onnx", "model.path=nowhere.onnx"),
    "wrong network": ("run", "model.name=resnet1"),
    "wrong checkpoint": ("run", "model.checkpoint=nowhere.safetensors"),
    "wrong data folder": ("run", "data.kind=imagefolder", "data.path=nowhere"),
    "wrong data folder, dry run": ("run", "data.kind=imagefolder", "data.path=nowhere", "--dry-run"),
    "budget 0": ("run", "search.budgets_ms=[0]"),
    "output folder that cannot be written": ("run", "output_dir=/proc/nowhere"),
    "MLflow that does not answer": ("run", "tracking.uri=http://127.0.0.1:9"),
}
TIMED = """
import json, os, sys
from flows.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sum(os.times()[:2])]))
"""


class Spent(NamedTuple):
    """CPU time [s] of one command. own: of its process; children: of those that it waited for. line: its last one."""

    code: int
    own_s: float
    children_s: float
    line: str


def spent(words: tuple[str, ...], folder: Path) -> Spent:
    """Of a command in a folder, with a home of its own beside it."""
    environment = os.environ | {"HOME": str(folder), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", TIMED, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    after = os.times()
    code, own_s = json.loads(done.stdout.splitlines()[-1])
    all_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(code, own_s, max(0.0, all_s - own_s), (done.stderr.strip().splitlines() or [""])[-1])


def best(words: tuple[str, ...], folder: Path, rounds: int) -> Spent:
    """The round that took least."""
    return min((spent(words, folder) for _ in range(rounds)), key=lambda one: one.own_s + one.children_s)


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="start-up-") as name:
        folder = Path(name)
        for title, words in REFUSED.items():
            found = best(words, folder, arguments.rounds)
            rows.append((title, BAR_S, found))
        if arguments.complete:
            words = ("run", "+preset=quick", "output_dir=out")
            spent(words, folder)
            rows.append(("complete run", COMPLETE_BAR_S, best(words, folder, arguments.rounds)))
    cells = [
        (title, str(found.code), f"{found.own_s:.2f}", f"{found.children_s:.2f}", f"{bar_s:g}", found.line[:60])
        for title, bar_s, found in rows
    ]
    show(("command", "exit code", "own CPU s", "children's CPU s", "bar", "line"), cells, markdown=arguments.markdown)


if __name__ == "__main__":
    main()

"""kill -9 anywhere: the same command goes on. Real runs in processes of their own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from tasks.base.artifacts import read_lines
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY

LIMIT_SECONDS = 400
ATTEMPTS = 3
SETTINGS = (
    *TINY,
    "finetune.checkpoint_every_s=0",
    "space.resolution=[16,24,32]",  # more SubNets than are measured at once
    "profile.subnets_per_operator=6",
    "profile.subnet.confidence=0.0001",
    "profile.subnet.time_cap_ms=30",
    "profile.subnet.layers_ms=30",
)


def _start(output: Path) -> subprocess.Popen[str]:
    words = ["predict", *SETTINGS, f"output_dir={output}"]
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _wait(process: subprocess.Popen[str], ready: Callable[[], bool]) -> bool:
    """Until something is so; False if the process has ended, and well, before that was seen."""
    until = time.monotonic() + LIMIT_SECONDS
    while not _is_so(ready):
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()
            return False
        assert time.monotonic() < until, "not reached in time"
        time.sleep(0.05)
    return process.poll() is None


def _is_so(ready: Callable[[], bool]) -> bool:
    """Whether something is so; not yet where a folder is renamed, as a finished stage's is, while files in it are read."""
    try:
        return ready()
    except FileNotFoundError:
        return False


def _kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and nothing that it started lives on."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []


def _lines(output: Path, stage: str, name: str) -> list[Any]:
    return [line for file in output.glob(f"stages/{stage}/*/{name}") for line in read_lines(file)]


def _finished(output: Path, stage: str) -> dict[Path, int]:
    """Result files of a stage with their times of change."""
    return {file: file.stat().st_mtime_ns for file in output.glob(f"stages/{stage}/*/result.json")}


def _timed(output: Path) -> list[str]:
    """SubNets whose operators' times are on disk, in the order of measuring."""
    return [line["key"] for line in _lines(output, "profile/onnxruntime", "subnets.jsonl")]


def _in_table(output: Path) -> int:
    """Operators that the store has."""
    return sum(pq.read_metadata(part).num_rows for part in output.glob("luts/*/part-*.parquet"))


def _enumerated(output: Path) -> int:
    """Operators that have to be measured."""
    (file,) = output.glob("stages/enumerate/*/operators.json")
    return len(json.loads(file.read_text())["operators"])


def _is_killed_while(output: Path, ready: Callable[[], bool], stage: str) -> bool:
    """Whether a run is killed when something is so, and before a stage has ended; on a busy machine it may be too late."""
    process = _start(output)
    if not _wait(process, ready):
        process.communicate()
        return False
    _kill(process)
    return not _finished(output, stage)


def _interrupted(output: Path) -> bool:
    """Whether a run is killed while it trains, and the next while it measures."""

    def trains() -> bool:
        return len(_lines(output, "finetune", "history.jsonl")) >= 3

    def measures() -> bool:
        return len(_timed(output)) >= 2

    return _is_killed_while(output, trains, "finetune") and _is_killed_while(output, measures, "profile/onnxruntime")


@pytest.mark.timeout(4 * LIMIT_SECONDS)
def test_a_run_that_is_killed_twice_goes_on_each_time_and_repeats_nothing(
    trained_stages: Callable[[Path, Sequence[str]], None], tmp_path: Path
) -> None:
    outputs = [tmp_path / f"out{number}" for number in range(ATTEMPTS)]
    for output in outputs:
        trained_stages(output, ["base"])
    bases = {output: _finished(output, "base") for output in outputs}
    output = next(output for output in outputs if _interrupted(output))
    base, tuned = bases[output], _finished(output, "finetune")
    timed_before = _timed(output)
    assert len(base) == len(tuned) == 1
    assert [line["step"] for line in _lines(output, "finetune", "history.jsonl")] == [*range(1, 19)]

    result = Command(output, SETTINGS)("predict")
    assert _finished(output, "base") == base
    assert _finished(output, "finetune") == tuned
    (profile,) = (json.loads(file.read_text()) for file in _finished(output, "profile/onnxruntime"))
    assert profile["measured_now"] == _in_table(output) == _enumerated(output)
    timed = _timed(output)
    assert timed[: len(timed_before)] == timed_before
    once = timed[: len(set(timed))]
    assert len(once) == len(set(once)) > len(timed_before)  # none was measured twice before all were measured once
    stages = [stage["stage"] for stage in result["stages"]]
    assert stages == ["sensitivities", "latency/onnxruntime", "resources/onnxruntime"]

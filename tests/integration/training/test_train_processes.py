"""Training by real ranks, alone or under torchrun: same loss curve for 1 and 2, one clear line when one dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Bar, Silent
from tasks.base.schemas.stored import StageResult
from tasks.training.finetune.checkpoint import finished_steps
from tests.support import SUPPORT
from tests.support.finetune.processes import ranks_of
from tests.support.finetune.small_training import STEPS, train

Baseline = tuple[list[dict[str, Any]], StageResult, Path]
RTOL = 1e-6
"""In float64: other orders of summation differ by 1e-16, and training lets that grow by several powers of ten."""
KILLS = 5
"""Trainings of which one is killed early enough."""
COMPARED = 12
"""Steps of two processes that are compared with one; then a rank is killed."""


def losses(history: list[dict[str, Any]]) -> list[float]:
    return [line["loss"] for line in history]


def listening_addresses(process: psutil.Process) -> set[str]:
    """Addresses at which any descendant accepts connections; not of those that end meanwhile."""
    found: set[str] = set()
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            sockets = child.net_connections("inet")
            found |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return found


def wait_for(condition: Any, seconds: float = 480) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


@pytest.mark.long
def test_training_learns_and_leaves_only_weights_and_history(baseline: Baseline) -> None:
    history, result, folder = baseline
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    assert history[-1]["loss"] < 0.6 * history[0]["loss"]
    assert result["trained"] is True
    assert result["test_accuracy"] > 0.85
    assert result["validation_accuracy"] > 0.85
    assert not (folder / "checkpoint.safetensors").exists()
    assert not (folder / "initial.safetensors").exists()
    assert "conv1.0.weight" in load_file(folder / "weights.safetensors")


@pytest.mark.long
def test_two_processes_give_the_loss_curve_of_one_and_a_killed_rank_is_one_clear_line(
    baseline: Baseline, tmp_path: Path
) -> None:
    history, _, _ = baseline
    seen: list[float] = []
    listening: set[str] = set()

    class Killer(Silent):
        def metrics(self, values: dict[str, float], step: int) -> None:
            seen.append(values["loss"])
            if step == COMPARED:
                listening.update(listening_addresses(psutil.Process()))
                ranks_of(psutil.Process())[1].kill()

    with pytest.raises(UserError, match=r"rank 1 was killed by SIGKILL; see .*workers\.log; the same command go"):
        train(tmp_path / "run", processes=2, progress=Killer())
    assert listening == {"127.0.0.1"}
    assert len(seen) >= COMPARED
    assert seen == pytest.approx(losses(history)[: len(seen)], rel=RTOL)
    assert wait_for(lambda: not ranks_of(psutil.Process()))


def killed(folder: Path) -> int:
    """Finished steps of a training that is killed when it has a checkpoint; no rank of it is left. All: it was too late."""
    script = SUPPORT / "finetune" / "small_training.py"
    pipeline = subprocess.Popen([sys.executable, str(script), str(folder), "1"])
    checkpoint = folder / "checkpoint.safetensors"
    wait_for(lambda: pipeline.poll() is not None or (checkpoint.exists() and finished_steps(checkpoint) > 0))
    ranks: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        ranks = list(ranks_of(psutil.Process(pipeline.pid)).values())
        assert all(rank.ppid() == pipeline.pid for rank in ranks), "a rank that is alone needs no torchrun"
    os.kill(pipeline.pid, signal.SIGKILL)
    pipeline.wait()
    assert not psutil.wait_procs(ranks, timeout=300)[1]
    return finished_steps(checkpoint) if len(ranks) == 1 and checkpoint.exists() else STEPS


@pytest.mark.long
def test_pipeline_killed_with_minus_9_leaves_no_rank_and_goes_on(baseline: Baseline, tmp_path: Path) -> None:
    history, result, _ = baseline
    folders = (tmp_path / f"run {number}" for number in range(KILLS))
    done, folder = next(found for one in folders if (found := (killed(one), one))[0] < STEPS)
    assert done > 0

    opened: list[int] = []

    class Listener(Silent):
        @contextmanager
        def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
            opened.append(done)
            with super().bar(name, total, done) as bar:
                yield bar

    resumed = train(folder, processes=1, progress=Listener())
    assert opened == [done]
    curve = read_lines(folder / "history.jsonl")
    assert [line["step"] for line in curve] == list(range(1, STEPS + 1))
    assert losses(curve) == pytest.approx(losses(history), rel=RTOL)
    left = {file.name for file in folder.iterdir()}
    assert left == {"confusions.jsonl", "weights.safetensors", "history.jsonl", "job.json", "workers.log"}
    assert resumed == pytest.approx(result, abs=1e-9)

"""Ranks that freeze are named, ended and started again; those that wait for them, or are slow, are left alone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.training import base_network as base
from tests.support.finetune.processes import ranks_of
from tests.support.finetune.small_training import MODEL

STEPS = 18


REMARK_S, END_S = 6.0, 12.0
"""More than a step takes on a machine that is busy, and stands still at times."""


class Freezer(Silent):
    """Freezes a rank once, in the middle, and keeps what is said."""

    def __init__(self, freeze: Callable[[], None]) -> None:
        self.freeze, self.is_frozen = freeze, False
        self.lines: list[str] = []
        self.steps: list[int] = []

    def metrics(self, values: dict[str, float], step: int) -> None:
        self.steps.append(step)
        if step >= STEPS // 2 and not self.is_frozen:
            self.is_frozen = True
            self.freeze()

    def say(self, line: str) -> None:
        self.lines.append(line)


def stop_rank(rank: int) -> None:
    ranks_of(psutil.Process())[rank].send_signal(signal.SIGSTOP)


def train(folder: Path, progress: Silent, data: DataSettings, **changes: Any) -> StageResult:
    settings = {"epochs": 1, "batch_size": 64, "micro_batch": 32, "device": "cpu", "checkpoint_every_s": 0.2}
    patience = {"silence_remark_s": REMARK_S, "silence_end_s": END_S}
    folder.mkdir(exist_ok=True)
    return base.run(base.Settings.model_validate({**settings, **patience, **changes}), MODEL, data, folder, progress)


def test_a_stopped_rank_is_named_ended_and_started_again(tmp_path: Path) -> None:
    freezer = Freezer(lambda: stop_rank(1))
    result = train(tmp_path / "run", freezer, DataSettings(kind="digits"), processes=2, restarts=1)
    name = "training the base network: rank 1"
    assert len(freezer.lines) == 3, freezer.lines
    _, remark, end = freezer.lines  # the first tells how many steps there are
    assert remark.startswith(f"{name} has not answered for ")
    assert remark.endswith(f"; it is ended after {END_S:g} s (silence_end_s)")
    assert "(stopped, " in remark
    assert end.startswith(f"{name} did not answer for {END_S:g} s (stopped, ")
    assert end.endswith("(restart 1 of 1)")
    assert 1 <= int(end.split("all ranks go on from step ")[1].split()[0]) < STEPS
    assert freezer.steps == list(range(1, STEPS + 1))
    assert result["trained"]
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "weights.safetensors",
        "history.jsonl",
        "confusions.jsonl",
        "job.json",
        "workers.log",
    }


IMAGES, IMAGE_STEPS = 96, 36


def write_images(folder: Path) -> None:
    """Two classes of plain images."""
    for split, count in (("train", IMAGES), ("val", 4), ("test", 4)):
        for number in range(count):
            file = folder / split / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number % 2 * 200, 40, number)).save(file)


def test_a_rank_whose_disk_hangs_is_one_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Its process runs, but an image is never read: a pipe that nobody writes to takes its place."""
    write_images(tmp_path / "images")
    image = tmp_path / "images" / "train" / "a" / "0.png"
    content = image.read_bytes()

    def hang() -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pipe.replace(image)  # at no moment is there no image

    data = DataSettings(kind="imagefolder", path=tmp_path / "images", resolution=32)
    options = {"epochs": 12, "batch_size": 32, "processes": 1}
    freezer = Freezer(hang)
    line = (
        rf"rank 0 did not answer for {END_S:g} s \(reading the images of step \d+\) and was ended; "
        r"see .*workers\.log; the same command goes on from step \d+ of 36$"
    )
    with pytest.raises(UserError, match=line):
        train(tmp_path / "run", freezer, data, **options)
    assert len(freezer.lines) == 2
    image.unlink()
    image.write_bytes(content)
    train(tmp_path / "run", freezer, data, **options)
    assert sorted(set(freezer.steps)) == list(range(1, IMAGE_STEPS + 1))

"""An epoch ends with a smaller batch where much of the data would be left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.data import DataSettings, load
from tasks.data.batches import samples_in
from tasks.data.dataset import Dataset, EpochPart, PlannedEpoch
from tasks.training.finetune.job import Job
from tasks.training.finetune.settings import TrainSettings


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load(DataSettings(kind="digits", augment=False), "train")


def _first(digits: Dataset, count: int) -> Dataset:
    return Dataset(digits.settings, digits.source, digits._indices[:count])


@pytest.mark.parametrize(
    ("count", "batch", "micro", "planned"),
    [
        (120, 64, 32, PlannedEpoch(2, 56)),
        (121, 64, 32, PlannedEpoch(2, 56)),  # both micro-batches are of one size
        (128, 64, 32, PlannedEpoch(2)),
        (67, 64, 32, PlannedEpoch(1)),  # micro-batches of one sample have no statistics
        (68, 64, 32, PlannedEpoch(2, 4)),
        (1197, 64, 32, PlannedEpoch(18)),  # 45 samples of an epoch are few
    ],
)
def test_a_last_batch_is_of_what_is_left(
    digits: Dataset, count: int, batch: int, micro: int, planned: PlannedEpoch
) -> None:
    data = _first(digits, count)
    assert data.planned(batch, batch // micro) == planned
    for world in (1, 2):
        slices = [
            [
                samples_in(x)
                for x, _ in data.batches(batch, seed=0, part=EpochPart(rank=rank, world=world, last=planned.last))
            ]
            for rank in range(world)
        ]
        whole = [batch] * (planned.steps - bool(planned.last)) + [planned.last] * bool(planned.last)
        assert np.sum(slices, axis=0).tolist() == whole
        assert len({tuple(one) for one in slices}) == 1, "ranks have slices of one size"


def test_the_plan_says_steps_and_that_they_are_few(tmp_path: Path) -> None:
    def plan(**options: Any) -> str:
        return Job(folder=tmp_path, data=DataSettings(kind="digits"), train=TrainSettings(epochs=10), **options).plan

    short = plan(steps_per_epoch=2, last_batch=56, total_steps=20)
    assert (
        short
        == "10 epochs of 2 steps with batches of 64, the last of 56; 20 steps: few; a smaller batch_size makes more"
    )
    assert plan(steps_per_epoch=18, total_steps=180) == "10 epochs of 18 steps with batches of 64; 180 steps"

"""Digits: the fixed split, the scaling, and batches that depend on seed and epoch but not on the ranks."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tasks.base.errors import UserError
from tasks.data import Dataset, DataSettings, EpochPart, load, load_splits


@pytest.fixture(scope="module")
def train() -> Dataset:
    return load(DataSettings(kind="digits"), "train")


def images_of(dataset: Dataset, **options: object) -> torch.Tensor:
    return torch.cat([x for x, _ in dataset.batches(64, **options)])  # type: ignore[arg-type]


def test_split_is_fixed_stratified_and_disjoint() -> None:
    splits = load_splits(DataSettings(kind="digits"))
    assert {name: len(split) for name, split in splits.items()} == {"train": 1197, "validation": 300, "test": 300}
    rows = {
        name: {tuple(x.flatten().tolist()) for x in images_of(split, resolution=8)} for name, split in splits.items()
    }
    assert not rows["train"] & rows["test"]
    assert not rows["validation"] & rows["test"]
    labels = torch.cat([y for _, y in splits["test"].batches(300)])
    assert np.bincount(labels.numpy()).min() >= 28
    again = load(DataSettings(kind="digits"), "test")
    assert torch.equal(images_of(again), images_of(splits["test"]))


def test_another_seed_gives_another_split() -> None:
    assert not torch.equal(
        images_of(load(DataSettings(kind="digits", seed=1), "test")),
        images_of(load(DataSettings(kind="digits"), "test")),
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("resolution", [32, 20])
def test_batches_have_the_asked_shape_and_type(channels: int, resolution: int) -> None:
    dataset = load(DataSettings(kind="digits", channels=channels), "validation")
    x, y = next(dataset.batches(50, resolution=resolution))
    assert x.shape == (50, channels, resolution, resolution)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (dataset.classes, dataset.channels) == (10, channels)


def test_grey_is_repeated_over_channels_before_normalisation() -> None:
    settings = DataSettings(kind="digits", mean=(0.0,), deviation=(1.0,))
    x, _ = next(load(settings, "test").batches(20))
    assert torch.equal(x[:, 0], x[:, 2])
    assert 0 <= x.min() <= x.max() <= 1


def test_in_order_batches_cover_the_whole_split_once() -> None:
    dataset = load(DataSettings(kind="digits"), "test")
    assert sum(len(y) for _, y in dataset.batches(64)) == 300


def test_shuffled_batches_are_whole_and_depend_on_seed_and_epoch(train: Dataset) -> None:
    first = images_of(train, seed=3, epoch=0)
    assert len(first) == train.steps(64) * 64
    assert torch.equal(first, images_of(train, seed=3, epoch=0))
    assert not torch.equal(first, images_of(train, seed=3, epoch=1))
    assert not torch.equal(first, images_of(train, seed=4, epoch=0))


def test_ranks_together_give_the_global_batches_of_one_rank(train: Dataset) -> None:
    alone = list(train.batches(64, seed=5, epoch=2))
    ranks = [list(train.batches(64, seed=5, epoch=2, part=EpochPart(rank=rank, world=2))) for rank in range(2)]
    for (x, y), (x0, y0), (x1, y1) in zip(alone, *ranks, strict=True):
        assert torch.equal(y, torch.cat([y0, y1]))
        assert torch.allclose(x, torch.cat([x0, x1]), rtol=0, atol=1e-6)


def test_start_skips_batches_without_changing_the_rest(train: Dataset) -> None:
    whole = [y for _, y in train.batches(64, seed=5)]
    tail = [y for _, y in train.batches(64, seed=5, part=EpochPart(start=15))]
    assert len(tail) == len(whole) - 15
    assert torch.equal(tail[0], whole[15])


def test_augmentation_changes_images_but_not_labels_and_can_be_left_out(train: Dataset) -> None:
    x, y = next(train.batches(64, seed=7))
    plain_x, plain_y = next(train.batches(64, seed=7, augment=False))
    assert torch.equal(y, plain_y)
    assert 0.05 < float((x - plain_x).abs().mean()) < 1.0


def test_batch_larger_than_the_split_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="batch_size: 400; allowed: at most 300"):
        load(DataSettings(kind="digits"), "test").steps(400)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resolution": 4},
        {"kind": "imagefolder"},
        {"unknown": 1},
        {"deviation": (0.0,)},
        {"mean": (0.1, 0.2)},
        {"channels": 2},
        {"kind": "torchvision", "path": "data"},
        {"kind": "torchvision", "path": "data", "name": "mnist"},
        {"kind": "torchvision", "name": "cifar10"},
        {"name": "cifar10"},
        {"kind": "glyphs", "images": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DataSettings.model_validate(wrong)

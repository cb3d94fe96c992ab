"""Parquet shards: streamed by row group, in an order that does not depend on the ranks."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from coloured_images import COLOURS, encoded

from tasks.data import DataSettings, load_splits
from tasks.data.parquet import WINDOW, open_parquet
from tasks.errors import UserError

IMAGES = [encoded(colour) for colour in COLOURS.values()]


def settings(path: Path) -> DataSettings:
    return DataSettings(kind="parquet", path=path, resolution=16, mean=(0.0,), deviation=(1.0,))


def write_shard(file: Path, labels: list[int], rows_per_group: int = 10) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"image": [IMAGES[label] for label in labels], "label": labels})
    pyarrow.parquet.write_table(table, file, row_group_size=rows_per_group)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Four shards of 60 rows in 6 row groups each, sorted by class as careless exports are."""
    for number in range(4):
        write_shard(tmp_path / f"part-{number}.parquet", [0] * 20 + [1] * 20 + [2] * 20)
    return tmp_path


def test_shards_are_split_by_class_and_decoded(shards: Path) -> None:
    splits = load_splits(settings(shards))
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 160,
        "validation": 40,
        "test": 40,
    }
    assert splits["train"].classes == 3
    for x, y in splits["train"].batches(32, seed=0):
        assert x.shape == (32, 3, 16, 16)
        assert torch.equal(x.mean((2, 3)).argmax(1), 2 - y)


def test_named_splits_are_used_as_they_are(tmp_path: Path) -> None:
    for name, count in (("train-00", 12), ("train-01", 12), ("validation-00", 6), ("test-00", 9)):
        write_shard(tmp_path / f"{name}.parquet", [0, 1, 2] * (count // 3))
    splits = load_splits(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 6, "test": 9}


def test_a_shuffled_epoch_reads_each_row_once_and_each_row_group_within_one_window(shards: Path) -> None:
    source, splits = open_parquet(settings(shards))
    order = source.shuffled(splits["train"], np.random.default_rng(0))
    assert sorted(order) == sorted(splits["train"])
    groups = order // 10
    for group in np.unique(groups):
        places = np.flatnonzero(groups == group)
        assert np.ptp(places) < WINDOW * 10
    assert len(np.unique(source.labels[order[:30]])) > 1


def test_ranks_together_give_the_global_batches_of_one_rank(shards: Path) -> None:
    train = load_splits(settings(shards))["train"]
    for alone, *ranks in zip(
        train.batches(32, seed=1, epoch=4),
        *(train.batches(32, seed=1, epoch=4, rank=r, world=2) for r in range(2)),
        strict=True,
    ):
        assert torch.equal(alone[0], torch.cat([x for x, _ in ranks]))
        assert torch.equal(alone[1], torch.cat([y for _, y in ranks]))


def test_absent_empty_and_malformed_shards_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \.parquet file"):
        load_splits(settings(tmp_path / "missing"))
    with pytest.raises(UserError, match=r"has no \.parquet file"):
        load_splits(settings(tmp_path))
    write_shard(tmp_path / "a.parquet", [])
    with pytest.raises(UserError, match=r"(have no rows|columns)"):
        load_splits(settings(tmp_path))
    pyarrow.parquet.write_table(pyarrow.table({"picture": [b"x"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"columns picture: binary, label: int64; allowed: image: binary"):
        load_splits(settings(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read"):
        load_splits(settings(tmp_path))


def test_row_that_is_no_image_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [b"not an image"] * 60, "label": [0, 1, 2] * 20})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    with pytest.raises(UserError, match=r"image 'a\.parquet row group \d+ row \d+': cannot be decoded"):
        next(load_splits(settings(tmp_path))["train"].batches(8))

"""Parquet shards: streamed by row group, in an order that does not depend on the ranks."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from tasks.base.errors import UserError
from tasks.data import DataSettings, EpochPart, load_splits, open_source
from tasks.data.dataset import WHOLE_EPOCH
from tasks.data.parquet import LANES, side_by_side
from tests.support.data.coloured_images import COLOURS, encoded

IMAGES = [encoded(colour) for colour in COLOURS.values()]


def settings(path: Path) -> DataSettings:
    return DataSettings(kind="parquet", path=path, resolution=16, mean=(0.0,), deviation=(1.0,))


def write_shard(file: Path, labels: list[int], rows_per_group: int = 10, **options: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"image": [IMAGES[label] for label in labels], "label": labels})
    pyarrow.parquet.write_table(table, file, row_group_size=rows_per_group, **options)


def write_splits(folder: Path, train: int) -> None:
    """`train` shards of one row group with 30 rows, and a shard each for validation and test."""
    for number in range(train):
        write_shard(folder / f"train-{number:02}.parquet", [0, 1, 2] * 10, rows_per_group=30)
    for split in ("validation", "test"):
        write_shard(folder / f"{split}-00.parquet", [0, 1, 2])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Four shards of 60 rows in 6 row groups each, sorted by class as careless exports are."""
    for number in range(4):
        write_shard(tmp_path / f"part-{number}.parquet", [0] * 20 + [1] * 20 + [2] * 20)
    return tmp_path


def test_shards_are_split_by_class_and_decoded(shards: Path) -> None:
    splits = load_splits(settings(shards))
    assert {name: len(split) for name, split in splits.items()} == {"train": 160, "validation": 40, "test": 40}
    assert splits["train"].classes == 3
    for x, y in splits["train"].batches(32, seed=0):
        assert x.shape == (32, 3, 16, 16)
        assert torch.equal(x.mean((2, 3)).argmax(1), 2 - y)


def test_named_splits_are_used_as_they_are(tmp_path: Path) -> None:
    for name, count in (("train-00", 12), ("train-01", 12), ("validation-00", 6), ("test-00", 9)):
        write_shard(tmp_path / f"{name}.parquet", [0, 1, 2] * (count // 3))
    splits = load_splits(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 6, "test": 9}


def test_a_shuffled_epoch_mixes_row_groups_and_reads_each_once_but_where_lanes_meet(shards: Path) -> None:
    source, splits = open_source(settings(shards))
    order = source.shuffled(splits["train"], np.random.default_rng(0), 32)
    assert sorted(order) == sorted(splits["train"])
    groups = order.reshape(5, 32) // 10
    assert min(len(np.unique(batch)) for batch in groups) >= LANES
    lanes = [lane.ravel() for lane in np.split(groups, LANES, axis=1)]
    reads = sum(1 + np.count_nonzero(np.diff(lane)) for lane in lanes)
    assert reads <= len(np.unique(groups)) + LANES - 1
    assert all(len(np.unique(source.labels[batch])) > 1 for batch in order.reshape(5, 32))
    assert not np.array_equal(order, source.shuffled(splits["train"], np.random.default_rng(1), 32))


@pytest.mark.parametrize(("count", "batch_size"), [(100, 1), (100, 3), (103, 8), (96, 24), (64, 64), (70, 33)])
def test_lanes_keep_every_row_and_equal_slices_of_batches_are_runs(count: int, batch_size: int) -> None:
    order = side_by_side(np.arange(count), batch_size)
    assert sorted(order) == list(range(count))
    batches = order[: count // batch_size * batch_size].reshape(-1, batch_size)
    for lane in np.array_split(batches, LANES, axis=1):
        assert np.array_equal(lane.ravel(), np.arange(lane.size) + lane.min(initial=count) * (lane.size > 0))


def read_without(folder: Path, keep: set[int], part: EpochPart = WHOLE_EPOCH) -> list[torch.Tensor]:
    """Labels of the batches when the only training shards left, once opened, are those numbered in `keep`."""
    train = load_splits(settings(folder))["train"]
    for shard in folder.glob("train-*.parquet"):
        if int(shard.stem.removeprefix("train-")) not in keep:
            shard.unlink()
    return [y for _, y in train.batches(16, seed=3, epoch=1, part=part)]


def needed(folder: Path, rank: int, start: int = 0) -> set[int]:
    """The shards whose rows one of two ranks is given from batch `start` on."""
    source, splits = open_source(settings(folder))
    rng = np.random.default_rng((3, 1))
    order = source.shuffled(splits["train"], rng, 16)[: 16 * (len(splits["train"]) // 16)].reshape(-1, 16)
    return set((np.array_split(order, 2, axis=1)[rank][start:] // 30).ravel().tolist())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_only_the_row_groups_of_its_own_rows(tmp_path: Path, rank: int) -> None:
    write_splits(tmp_path, 16)
    whole = [y.tensor_split(2)[rank] for _, y in load_splits(settings(tmp_path))["train"].batches(16, seed=3, epoch=1)]
    own = needed(tmp_path, rank)
    assert len(own) <= 9
    assert len(own | needed(tmp_path, 1 - rank)) == 16
    for expected, y in zip(whole, read_without(tmp_path, own, EpochPart(rank=rank, world=2)), strict=True):
        assert torch.equal(y, expected)


def test_a_resumed_epoch_reads_nothing_of_what_is_behind_it(tmp_path: Path) -> None:
    write_splits(tmp_path, 16)
    whole = [y for _, y in load_splits(settings(tmp_path))["train"].batches(16, seed=3, epoch=1)]
    ahead = needed(tmp_path, 0, 20) | needed(tmp_path, 1, 20)
    assert len(ahead) < 16
    for expected, y in zip(whole[20:], read_without(tmp_path, ahead, EpochPart(start=20)), strict=True):
        assert torch.equal(y, expected)


def test_ranks_together_give_the_global_batches_of_one_rank(shards: Path) -> None:
    train = load_splits(settings(shards))["train"]
    for alone, *ranks in zip(
        train.batches(32, seed=1, epoch=4),
        *(train.batches(32, seed=1, epoch=4, part=EpochPart(rank=r, world=2)) for r in range(2)),
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
    for label, told in ((None, "row 3 has no label; mend"), (-2, "row 3: label -2; allowed: 0, 1, 2, …")):
        content = {"image": [b"x"] * 3, "label": [1, 0, label]}
        pyarrow.parquet.write_table(pyarrow.table(content), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=rf"parquet '.*a\.parquet': {told}"):
            load_splits(settings(tmp_path))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read"):
        load_splits(settings(tmp_path))


def test_row_that_is_no_image_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [b"not an image"] * 60, "label": [0, 1, 2] * 20})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    with pytest.raises(UserError, match=r"image 'a\.parquet row group \d+ row \d+': cannot be decoded"):
        next(load_splits(settings(tmp_path))["train"].batches(8))


def break_images(shard: Path) -> None:
    """Change bytes in the middle of the first row group's images, behind the labels' back."""
    column = pyarrow.parquet.read_metadata(shard).row_group(0).column(0)
    assert column.path_in_schema == "image"
    content = bytearray(shard.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    content[middle : middle + 64] = bytes(64)
    shard.write_bytes(content)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_shard_that_is_corrupt_inside_is_named(tmp_path: Path, compression: str) -> None:
    """Compressed pages fail to decompress, others by their checksum."""
    write_splits(tmp_path, 2)
    broken = tmp_path / "train-01.parquet"
    write_shard(broken, [0, 1, 2] * 10, 30, compression=compression, use_dictionary=False, write_page_checksum=True)
    break_images(broken)
    train = load_splits(settings(tmp_path))["train"]
    with pytest.raises(UserError, match=r"parquet '.*train-01\.parquet': cannot be read \(.*\); replace or remove it"):
        list(train.batches(20, seed=0))


def test_shard_that_is_cut_off_or_gone_is_named(tmp_path: Path) -> None:
    write_splits(tmp_path, 2)
    train = load_splits(settings(tmp_path))["train"]
    (tmp_path / "train-01.parquet").unlink()
    with pytest.raises(UserError, match=r"parquet '.*train-01\.parquet': cannot be read"):
        list(train.batches(20, seed=0))
    shard = tmp_path / "train-00.parquet"
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"parquet '.*train-00\.parquet': cannot be read"):
        load_splits(settings(tmp_path))


def test_class_that_a_split_lacks_is_named(tmp_path: Path) -> None:
    write_splits(tmp_path, 1)
    write_shard(tmp_path / "validation-00.parquet", [0, 2])
    with pytest.raises(UserError, match=r"no image of 1 of 3 classes in validation: 1; add images of each class"):
        load_splits(settings(tmp_path))

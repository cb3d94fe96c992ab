"""Parquet shards with columns `image` (encoded PNG or JPEG bytes) and `label` (integer), streamed.

Only the labels are held in memory. Images are read a row group at a time; a shuffled epoch goes through the
row groups in random order, a few at a time, and shuffles the rows within them, so that each is read once.
"""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch

from tasks.data.decode import Content, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import complete_splits
from tasks.errors import UserError

WINDOW = 4
"""Row groups whose rows are shuffled together; as many are held in memory."""
SPLIT_NAMES = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


class Parquet:
    """The rows of all shards, in order of shard name, row group and row."""

    def __init__(self, settings: DataSettings, shards: list[Path]) -> None:
        labels: list[np.ndarray] = []
        self._groups: list[tuple[Path, int]] = []
        sizes: list[int] = []
        for shard in shards:
            file = _open(shard)
            labels.append(_labels(shard, file))
            self._groups += [(shard, group) for group in range(file.num_row_groups)]
            sizes += [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        self.labels = np.concatenate(labels)
        self.class_names = tuple(str(label) for label in range(int(self.labels.max(initial=-1)) + 1))
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._cache: OrderedDict[int, pyarrow.ChunkedArray] = OrderedDict()
        self._decoder = Decoder(settings)

    def _group_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, indices, side="right") - 1

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Row groups in random order, rows shuffled within each window of `WINDOW` groups."""
        group_of = self._group_of(indices)
        order = rng.permutation(np.unique(group_of))
        windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
        return np.concatenate([rng.permutation(indices[np.isin(group_of, window)]) for window in windows])

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip."""
        contents = [
            self._content(int(index), int(group)) for index, group in zip(indices, self._group_of(indices), strict=True)
        ]
        return self._decoder.batch(contents, draws)

    def _content(self, index: int, group: int) -> Content:
        row = index - int(self._starts[group])
        shard, _ = self._groups[group]
        content = self._column(group)[row].as_py()
        if content is None:
            raise UserError(f"parquet '{shard}'", f"row {row} of row group {self._groups[group][1]} has no image")
        return f"{shard.name} row group {self._groups[group][1]} row {row}", lambda: content

    def _column(self, group: int) -> pyarrow.ChunkedArray:
        if group in self._cache:
            self._cache.move_to_end(group)
            return self._cache[group]
        shard, number = self._groups[group]
        while len(self._cache) > WINDOW:
            self._cache.popitem(last=False)
        self._cache[group] = _open(shard).read_row_group(number, columns=["image"]).column("image")
        return self._cache[group]


def _open(shard: Path) -> pyarrow.parquet.ParquetFile:
    try:
        file = pyarrow.parquet.ParquetFile(shard)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"parquet '{shard}'", f"cannot be read ({error})") from error
    types = {name: file.schema_arrow.field(name).type for name in file.schema_arrow.names}
    image, label = types.get("image"), types.get("label")
    if image is None or label is None or not (pyarrow.types.is_binary(image) or pyarrow.types.is_large_binary(image)):
        raise UserError(
            f"parquet '{shard}'",
            f"columns {', '.join(f'{k}: {v}' for k, v in types.items())}",
            allowed="image: binary (encoded PNG or JPEG), label: integer",
        )
    if not pyarrow.types.is_integer(label):
        raise UserError(f"parquet '{shard}'", f"column label is {label}", allowed="an integer type")
    return file


def _labels(shard: Path, file: pyarrow.parquet.ParquetFile) -> np.ndarray:
    column = file.read(columns=["label"]).column("label")
    if column.null_count:
        raise UserError(f"parquet '{shard}'", f"{column.null_count} rows have no label")
    labels = column.to_numpy().astype(np.int64)
    if labels.size and labels.min() < 0:
        raise UserError(f"parquet '{shard}'", f"label {labels.min()}", allowed="0, 1, 2, …")
    return labels


def _shards(root: Path) -> dict[str, list[Path]]:
    if root.is_file():
        return {"train": [root]}
    found = {
        split: sorted(
            shard
            for name in names
            for pattern in (f"{name}/*.parquet", f"{name}-*.parquet")
            for shard in root.glob(pattern)
        )
        for split, names in SPLIT_NAMES.items()
    }
    if found["train"]:
        return {split: shards for split, shards in found.items() if shards}
    return {"train": sorted(root.glob("*.parquet"))}


def open_parquet(settings: DataSettings) -> tuple[Parquet, dict[str, np.ndarray]]:
    """Source and splits: PATH/train/*.parquet or PATH/train-*.parquet (val, test alike), else by shares."""
    assert settings.path is not None
    by_split = _shards(settings.path) if settings.path.exists() else {"train": []}
    if not by_split["train"]:
        raise UserError(
            f"data folder '{settings.path}'",
            "has no .parquet file",
            next_step="choose another with data.path=FOLDER",
        )
    source = Parquet(settings, [shard for shards in by_split.values() for shard in shards])
    splits, start = {}, 0
    for split, shards in by_split.items():
        count = sum(_open(shard).metadata.num_rows for shard in shards)
        splits[split] = np.arange(start, start + count)
        start += count
    if not len(splits["train"]):
        raise UserError(f"data folder '{settings.path}'", "its .parquet files have no rows")
    return source, complete_splits(splits, source.labels, settings)

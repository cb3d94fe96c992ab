"""Parquet shards with columns `image` (encoded PNG or JPEG bytes) and `label` (integer), streamed.

Only the labels are held in memory. Images are read a row group at a time, by the ranks that need them: a shuffled epoch is cut
into `LANES` lanes, which go through different row groups side by side, reading each once, and every rank's slice of every
global batch consists of its own lanes.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

from tasks.base.errors import UserError
from tasks.data.images import SCALING, Content, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import SPLIT_NAMES, Source, consecutive

LANES = 8
"""Row groups that a batch mixes; all ranks together hold about this many in memory."""


class Parquet(Source):
    """The rows of all shards, in order of shard name, row group and row."""

    scaling = SCALING

    def __init__(self, settings: DataSettings) -> None:
        """UserError: there are no shards, or no rows in those of training, or a shard cannot be read."""
        self._groups: list[tuple[Path, int]] = []
        sizes: list[int] = []
        labels: list[np.ndarray] = []
        counts: dict[str, int] = {}
        for split, shards in _shards(settings).items():
            for shard in shards:
                with _open(shard) as file:
                    labels.append(_labels(shard, file))
                    self._groups += [(shard, group) for group in range(file.num_row_groups)]
                    sizes += [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            counts[split] = sum(sizes) - sum(counts.values())
        if not counts["train"]:
            raise UserError(f"data folder '{settings.path}'", "its .parquet files have no rows")
        self.given = consecutive(counts)
        self.labels = np.concatenate(labels)
        self.class_names = tuple(str(label) for label in range(int(self.labels.max(initial=-1)) + 1))
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._held: dict[int, pyarrow.ChunkedArray] = {}
        self._decoder = Decoder(settings)

    def _group_of(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, indices, side="right") - 1

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Row groups in random order, rows shuffled within each, in lanes: see `side_by_side`."""
        place = rng.permutation(len(self._groups))[self._group_of(indices)]
        return side_by_side(indices[np.lexsort((rng.random(len(indices)), place))], batch_size)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Decoded images; augmented by a random resized crop and a flip. The rows of the last call are kept."""
        group_of = self._group_of(indices)
        held, groups = self._held, np.unique(group_of).tolist()
        columns = {group: held[group] if group in held else self._read(group) for group in groups}
        self._held = columns
        contents = [
            self._content(int(index), int(group), columns[group])
            for index, group in zip(indices, group_of, strict=True)
        ]
        return self._decoder.batch(contents, draws)

    def _read(self, group: int) -> pyarrow.ChunkedArray:
        shard, number = self._groups[group]
        with _open(shard) as file:
            return file.read_row_group(number, columns=["image"]).column("image")

    def _content(self, index: int, group: int, column: pyarrow.ChunkedArray) -> Content:
        shard, number = self._groups[group]
        row = index - int(self._starts[group])
        content = column[row].as_py()
        if content is None:
            raise UserError(f"parquet '{shard}'", f"row {row} of row group {number} has no image")
        return f"'{shard.name} row group {number} row {row}'", lambda: Image.open(io.BytesIO(content))


def side_by_side(order: np.ndarray, batch_size: int) -> np.ndarray:
    """Whole batches that take an equal part from each of `LANES` equal stretches of `order`; then the rest.

    Thus equal slices of every batch go through their own stretches of `order`, each from end to end.
    """
    steps = len(order) // batch_size
    widths = [len(part) for part in np.array_split(np.arange(batch_size), LANES)]
    *lanes, left = np.split(order, np.cumsum(widths) * steps)
    columns = [lane.reshape(steps, width) for lane, width in zip(lanes, widths, strict=True)]
    return np.concatenate([np.concatenate(columns, axis=1).ravel(), left])


@contextmanager
def _open(shard: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A shard with the right columns. UserError if it has others or, also later, cannot be read."""
    try:
        with pyarrow.parquet.ParquetFile(shard, page_checksum_verification=True) as file:
            _check_columns(shard, file)
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"parquet '{shard}'", f"cannot be read ({str(error)[:200]})", next_step="replace or remove it"
        ) from error


def _check_columns(shard: Path, file: pyarrow.parquet.ParquetFile) -> None:
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


def _labels(shard: Path, file: pyarrow.parquet.ParquetFile) -> np.ndarray:
    column = file.read(columns=["label"]).column("label")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0]) + 1
        raise UserError(f"parquet '{shard}'", f"row {row} has no label", next_step="mend or remove it")
    labels = column.to_numpy().astype(np.int64)
    if len(negative := np.flatnonzero(labels < 0)):
        got = f"row {negative[0] + 1}: label {labels[negative[0]]}"
        raise UserError(f"parquet '{shard}'", got, allowed="0, 1, 2, …", next_step="mend or remove it")
    return labels


def _shards(settings: DataSettings) -> dict[str, list[Path]]:
    """PATH/train/*.parquet or PATH/train-*.parquet (likewise val, test), else PATH/*.parquet or a file PATH for training."""
    root = settings.path
    assert root is not None
    found = {
        split: sorted(
            shard
            for name in names
            for pattern in (f"{name}/*.parquet", f"{name}-*.parquet")
            for shard in root.glob(pattern)
        )
        for split, names in SPLIT_NAMES.items()
    }
    if not found["train"]:
        found = {"train": [root] if root.is_file() else sorted(root.glob("*.parquet"))}
    if not found["train"]:
        next_step = "choose another with data.path=FOLDER"
        raise UserError(f"data folder '{root}'", "has no .parquet file", next_step=next_step)
    return {split: shards for split, shards in found.items() if shards}

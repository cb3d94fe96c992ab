"""Tables of samples, in CSV or Parquet: PATH/*, split by us, or PATH/train/*, PATH/val/*, PATH/test/*.

A row is a sample: columns name files of images, below the table's folder, or have numbers; `label` is the class.
Legend: B batch, R rows of all tables, V numbers of an input.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptive_runtime.several import NumbersPreparation
from tasks.data.batches import Inputs
from tasks.data.decode import SCALING, Decoder
from tasks.data.settings import DataSettings
from tasks.data.source import check_classes, complete_splits, split_folders
from tasks.errors import UserError, shortened

LABEL = "label"
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class _Table:
    """A file. images: names of files by input; numbers: (R, V) by input; labels: (R,), as texts."""

    file: Path
    images: dict[str, NDArray[np.str_]]
    numbers: dict[str, NDArray[np.float64]]
    labels: NDArray[np.str_]


class TableSamples:
    """All rows of all tables: numbers in memory, images decoded when asked for. `learn_scale` is called once, before use."""

    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings, tables: Sequence[_Table]) -> None:
        assert settings.inputs is not None
        self._inputs = settings.inputs
        self._decoder = Decoder(settings)
        self._places = [(table.file, row) for table in tables for row in range(len(table.labels))]
        self._images = {name: np.concatenate([table.images[name] for table in tables]) for name in tables[0].images}
        self._numbers = {name: np.concatenate([table.numbers[name] for table in tables]) for name in tables[0].numbers}
        names_R = np.concatenate([table.labels for table in tables])
        are_numbers = all(WHOLE.fullmatch(name) for name in np.unique(names_R))
        labels_R = names_R.astype(np.int64) if are_numbers else names_R
        classes, self.labels = np.unique(labels_R, return_inverse=True)
        self.class_names = tuple(map(str, classes.tolist()))
        self.scaling = SCALING

    def learn_scale(self, train: np.ndarray) -> None:
        """Take mean and deviation of all numbers from the samples of training."""
        found: dict[str, NumbersPreparation | None] = {}
        for name, wanted in self._inputs.items():
            if wanted == "image":
                found[name] = None
                continue
            values_RV = self._numbers[name][train]
            deviation_V = values_RV.std(0)
            found[name] = NumbersPreparation(
                names=wanted,
                shape=(len(wanted),),
                mean=tuple(values_RV.mean(0).tolist()),
                deviation=tuple(np.where(deviation_V > 0, deviation_V, 1.0).tolist()),
            )
        self.scaling = SCALING._replace(inputs=found)

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Any order: each image is a file of its own."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """Decoded images (B, C, H, W) and numbers (B, V); all images of a sample are cut and flipped alike by `draws`."""
        return tuple(
            self._decoded(name, indices, draws)
            if name in self._images
            else torch.from_numpy(self._numbers[name][indices])
            for name in self._inputs
        )

    def _decoded(self, name: str, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        contents = []
        for index in indices:
            table, row = self._places[index]
            file = table.parent / self._images[name][index]
            contents.append((f"'{file}' of row {row + 1} of '{table}'", partial(Image.open, file)))
        return self._decoder.batch(contents, draws)


def open_table(settings: DataSettings) -> tuple[TableSamples, dict[str, np.ndarray]]:
    """The source and its splits. UserError: no tables, or a row that is not what it has to be, with its file and number."""
    tables: list[_Table] = []
    splits: dict[str, np.ndarray] = {}
    rows = 0
    for split, folder in split_folders(settings).items():
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise UserError(f"data folder '{folder}'", "no tables of samples", allowed=f"*{{{','.join(SUFFIXES)}}}")
        found = [_read(file, settings) for file in files]
        count = sum(len(table.labels) for table in found)
        splits[split], rows = np.arange(rows, rows + count), rows + count
        tables += found
    source = TableSamples(settings, tables)
    if len(source.class_names) < 2:
        raise UserError(f"data folder '{settings.path}'", f"{len(source.class_names)} class", allowed="two or more")
    check_classes(source, splits, settings)
    splits = complete_splits(splits, source, settings)
    source.learn_scale(splits["train"])
    return source, splits


def _read(file: Path, settings: DataSettings) -> _Table:
    """UserError: the file cannot be read, or a row is not what it has to be, with its number from 1 on."""
    assert settings.inputs is not None
    where = f"table '{file}'"
    try:
        table = _csv(file, settings) if file.suffix == ".csv" else pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(where, f"cannot be read ({shortened(error, 80)})", next_step="remove or replace it") from error
    if not table.num_rows:
        raise UserError(where, "has no rows", next_step="remove it")
    images: dict[str, NDArray[np.str_]] = {}
    numbers: dict[str, NDArray[np.float64]] = {}
    for name, wanted in settings.inputs.items():
        if wanted == "image":
            images[name] = _texts(where, name, _column(where, name, table))
            _check_files(where, name, file.parent, images[name], settings.path or file.parent)
        else:
            numbers[name] = np.stack([_numbers(where, one, _column(where, one, table)) for one in wanted], 1)
    return _Table(file, images, numbers, _texts(where, LABEL, _column(where, LABEL, table)))


def _csv(file: Path, settings: DataSettings) -> pyarrow.Table:
    """Labels and names of files are texts, whatever they look like: 01 is not 1."""
    texts = [LABEL, *(name for name, wanted in (settings.inputs or {}).items() if wanted == "image")]
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pyarrow.string()))
    return pyarrow.csv.read_csv(file, convert_options=options)


def _column(where: str, name: str, table: pyarrow.Table) -> pyarrow.ChunkedArray:
    count = table.column_names.count(name)
    if count != 1:
        got = f"{count} columns '{name}'" if count else f"no column '{name}'"
        raise UserError(where, got, allowed=", ".join(table.column_names), next_step="see data.inputs")
    return table.column(name)


def _texts(where: str, name: str, column: pyarrow.ChunkedArray) -> NDArray[np.str_]:
    found: NDArray[np.str_] = np.array(["" if one is None else str(one) for one in column.to_pylist()], dtype=np.str_)
    if len(empty := np.flatnonzero(found == "")):
        raise UserError(where, f"row {empty[0] + 1}: nothing in column '{name}'", next_step="fill or remove it")
    return found


def _numbers(where: str, name: str, column: pyarrow.ChunkedArray) -> NDArray[np.float64]:
    found = np.empty(len(column), np.float64)
    for row, value in enumerate(column.to_pylist()):
        try:
            found[row] = np.nan if value is None or isinstance(value, bool) else value
        except (TypeError, ValueError):
            found[row] = np.nan
        if not np.isfinite(found[row]):
            got = f"row {row + 1}: '{'' if value is None else value}' in column '{name}'"
            raise UserError(where, got, allowed="finite numbers", next_step="mend or remove it")
    return found


def _check_files(where: str, name: str, folder: Path, files: NDArray[np.str_], root: Path) -> None:
    """root: files elsewhere would change unseen."""
    for row, file in enumerate(files):
        if not Path(os.path.normpath(folder / file)).is_relative_to(os.path.normpath(root)):
            got = f"row {row + 1}: column '{name}' names '{file}'"
            raise UserError(where, got, allowed=f"files below '{root}'", next_step="mend or remove it")
        if not os.path.isfile(folder / file):  # no error for a name that cannot be
            got = f"row {row + 1}: column '{name}' names '{file}', which is no file in '{folder}'"
            raise UserError(where, got, next_step="mend or remove it")

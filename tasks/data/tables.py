"""Tables of samples, in CSV or Parquet: PATH/*, split by shares, or PATH/train/*, PATH/val/*, PATH/test/*.

A row is a sample: columns name files of images or sounds, below the table's folder, or contain texts or numbers; `label` is the
class, or several columns are classes of one sample. Legend: B batch, R rows of all tables, V numbers of an input, T words of a
text, A targets.
"""

import re
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from PIL import Image

from adaptive_runtime.samples.inputs import NumbersPreparation, Vocabulary, words_of
from tasks.base.errors import UserError, shortened
from tasks.data.batches import Inputs
from tasks.data.images import SCALING, Decoder
from tasks.data.settings import DataSettings, TableInput
from tasks.data.signals.sounds import WavClips
from tasks.data.source import OtherInput, Source, Splits, check_labels, files_of_splits, named_file, numbered
from tasks.data.texts import augmented, longer_texts, text_preparation, vocabulary_of

LABEL = "label"
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class _Table:
    """A file with R rows. columns: by input, names of files or texts (R,), or numbers (R, V). labels (R,): by target, texts."""

    file: Path
    columns: dict[str, NDArray[Any]]
    labels: dict[str, NDArray[np.str_]]


class TableSamples(Source):
    """All rows of all tables: texts and numbers in memory, files decoded on demand. Call `splits` once before use.

    classes: their names by target. targets (R, A): the class of each target. heads: numbers of classes. `labels` are those of
    the first target.
    """

    has_classes = False

    def __init__(self, settings: DataSettings) -> None:
        """UserError: no tables, or an invalid row, with its file and number."""
        assert settings.inputs is not None
        files = files_of_splits(settings, SUFFIXES, "tables of samples")
        by_split = {split: [_read(file, settings) for file in own] for split, own in files.items()}
        tables = [table for own in by_split.values() for table in own]
        self._settings, self._inputs = settings, settings.inputs
        self._decoder = Decoder(settings)
        rows = {split: [_places(table) for table in own] for split, own in by_split.items()}
        self._places, self.given = numbered({split: list(chain(*own)) for split, own in rows.items()})
        self._columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in self._inputs}
        self._clips: dict[str, WavClips] = {}
        for name in (name for name, wanted in self._inputs.items() if wanted == "sound"):
            rows_R = range(len(self._places))
            files_R, texts_R = [self._path(name, row) for row in rows_R], [self._described(name, row) for row in rows_R]
            self._clips[name] = WavClips(settings, files_R, texts_R)
        names = tables[0].labels
        found = {name: _classes(np.concatenate([table.labels[name] for table in tables])) for name in names}
        self.classes = {name: classes for name, (classes, _) in found.items()}
        self.heads = {name: len(classes) for name, classes in self.classes.items()}
        self.targets = np.stack([labels_R for _, labels_R in found.values()], 1)
        self.labels = self.targets[:, 0]
        self.class_names = tuple(
            f"{target}: {name}" if len(self.classes) > 1 else name
            for target, own in self.classes.items()
            for name in own
        )
        self.scaling = SCALING

    def splits(self, settings: DataSettings) -> Splits:
        """All splits. UserError: a target has a single class, or a split lacks one, or no word occurs often enough."""
        for target, names in self.classes.items():
            if len(names) < 2:
                of_target = f" of '{target}'" if settings.targets else ""
                got = f"{len(names)} class{of_target}"
                raise UserError(f"data folder '{settings.path}'", got, allowed="two or more")
        self._check(self.given or {}, settings)
        splits = super().splits(settings)
        self._check(splits, settings)
        self._learn(splits["train"])
        return splits

    def _check(self, splits: Splits, settings: DataSettings) -> None:
        """UserError for a split that lacks a class of a target."""
        for number, names in enumerate(self.classes.values()):
            check_labels(self.targets[:, number], names, splits, settings)

    def _learn(self, train: np.ndarray) -> None:
        """Compute mean and deviation of all numbers, and the vocabulary of all texts, from the training samples."""
        if self._settings.has_one_image:
            return
        length = self._settings.words
        assert length is not None
        vocabulary: Vocabulary | None = None
        if texts := {name: self._columns[name].tolist() for name, wanted in self._inputs.items() if wanted == "text"}:
            vocabulary = vocabulary_of([own[row] for own in texts.values() for row in train], self._settings)
            self._tokens = {name: vocabulary.tokens(own, length) for name, own in texts.items()}
            self.notes = longer_texts(list(chain(*texts.values())), length)
        found: dict[str, OtherInput | None] = {}
        for name, wanted in self._inputs.items():
            if wanted == "image":
                found[name] = None
            elif wanted == "sound":
                found[name] = self._clips[name].spectrogram
            elif wanted == "text":
                assert vocabulary is not None
                found[name] = text_preparation(vocabulary, length, length)
            else:
                found[name] = _numbers_preparation(wanted, self._columns[name][train])
        self.scaling = SCALING._replace(inputs=found, vocabulary=vocabulary)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> Inputs:
        """Images (B, C, H, W), spectrograms of sounds (B, 1, H, W), texts (B, T) and numbers (B, V).

        With `draws`, all images of a sample are cut and flipped alike, sounds are changed, and words are left out. An image
        that is the only input is a single tensor, as for other kinds of data.
        """
        found = tuple(self._input(name, wanted, indices, draws) for name, wanted in self._inputs.items())
        return found[0] if self._settings.has_one_image else found

    def several(self, indices: np.ndarray, draws: np.ndarray | None) -> tuple[Inputs, torch.Tensor]:
        """Samples and the class of each target (B, A)."""
        return self.images(indices, draws), torch.from_numpy(self.targets[indices])

    def _input(self, name: str, wanted: TableInput, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        if wanted == "image":
            contents = [
                (self._described(name, index), partial(Image.open, self._path(name, index))) for index in indices
            ]
            return self._decoder.batch(contents, draws)
        if wanted == "sound":
            return self._clips[name].images(indices, draws)
        if wanted == "text":
            return augmented(self._tokens[name][indices], draws)
        return torch.from_numpy(self._columns[name][indices])

    def _path(self, name: str, index: int) -> Path:
        return self._places[index][0].parent / str(self._columns[name][index])

    def _described(self, name: str, index: int) -> str:
        """A file with its place, for messages."""
        table, row = self._places[index]
        return f"'{self._path(name, index)}' of row {row + 1} of '{table}'"


def _places(table: _Table) -> list[tuple[Path, int]]:
    """The file and the number of each row."""
    return [(table.file, row) for row in range(len(next(iter(table.labels.values()))))]


def _classes(names_R: NDArray[np.str_]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of classes, and the class of each row; whole numbers are sorted as numbers."""
    are_numbers = all(WHOLE.fullmatch(name) for name in np.unique(names_R))
    classes, labels_R = np.unique(names_R.astype(np.int64) if are_numbers else names_R, return_inverse=True)
    return tuple(map(str, classes.tolist())), labels_R


def _numbers_preparation(names: tuple[str, ...], values_RV: NDArray[np.float64]) -> NumbersPreparation:
    """The preparation of numbers, by mean and deviation of the training samples."""
    deviation_V = values_RV.std(0)
    return NumbersPreparation(
        names=names,
        shape=(len(names),),
        mean=tuple(values_RV.mean(0).tolist()),
        deviation=tuple(np.where(deviation_V > 0, deviation_V, 1.0).tolist()),
    )


def _read(file: Path, settings: DataSettings) -> _Table:
    """A table. UserError: the file cannot be read, or a row (numbered from 1) is invalid."""
    assert settings.inputs is not None
    where = f"table '{file}'"
    try:
        table = _csv(file, settings) if file.suffix == ".csv" else pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(where, f"cannot be read ({shortened(error, 80)})", next_step="remove or replace it") from error
    if not table.num_rows:
        raise UserError(where, "has no rows", next_step="remove it")
    columns: dict[str, NDArray[Any]] = {}
    for name, wanted in settings.inputs.items():
        if isinstance(wanted, tuple):
            columns[name] = np.stack([_numbers(where, one, _column(where, one, table)) for one in wanted], 1)
        elif wanted == "text":
            columns[name] = _written(where, name, _column(where, name, table))
        else:
            columns[name] = _texts(where, name, _column(where, name, table))
            for row, one in enumerate(columns[name], 1):
                named_file(where, row, name, one, file.parent, settings.path or file.parent)
    labels = {name: _texts(where, name, _column(where, name, table)) for name in settings.targets or (LABEL,)}
    return _Table(file, columns, labels)


def _csv(file: Path, settings: DataSettings) -> pyarrow.Table:
    """A table from CSV. Labels, texts and file names are read as texts: 01 is not 1. Texts may have several lines."""
    inputs = settings.inputs or {}
    texts = [*(settings.targets or (LABEL,)), *(name for name, wanted in inputs.items() if isinstance(wanted, str))]
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pyarrow.string()))
    form = pyarrow.csv.ParseOptions(newlines_in_values="text" in inputs.values())
    return pyarrow.csv.read_csv(file, convert_options=options, parse_options=form)


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


def _written(where: str, name: str, column: pyarrow.ChunkedArray) -> NDArray[np.object_]:
    found = ["" if one is None else str(one) for one in column.to_pylist()]
    for row, text in enumerate(found):
        if not words_of(text):
            got = f"row {row + 1}: column '{name}' has no words"
            raise UserError(where, got, next_step="fill or remove it")
    return np.array(found, dtype=object)


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

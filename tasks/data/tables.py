"""Tables of samples, in CSV or Parquet: PATH/*, split by shares, or PATH/train/*, PATH/val/*, PATH/test/*.

A row is a sample: columns name files of images or sounds, below the table's folder, or contain texts or numbers; `label` is the
class, or several columns are classes of one sample. Legend: B batch, R rows of all tables, V numbers of an input, T words of a
text, A targets.
"""

import re
from collections.abc import Mapping
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

from adaptive_runtime.samples.inputs import NumbersPreparation, Vocabulary, words_of
from tasks.base.errors import UserError, shortened
from tasks.data.images import SCALING, Decoder
from tasks.data.settings import DataSettings, TableInput
from tasks.data.signals.sounds import WavClips
from tasks.data.source import (
    Inputs,
    OtherInput,
    Source,
    Splits,
    check_labels,
    files_of_splits,
    named_file,
    numbered,
)
from tasks.data.texts import augmented, text_preparation, told_longer, vocabulary_of

LABEL = "label"
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class _Table:
    """A file with R `rows`. files: file names of images and sounds, by input; texts, numbers (R, V): by input.

    labels (R,): by target, as texts.
    """

    file: Path
    files: dict[str, NDArray[np.str_]]
    texts: dict[str, list[str]]
    numbers: dict[str, NDArray[np.float64]]
    labels: dict[str, NDArray[np.str_]]
    rows: int


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
        self._places, self.given = numbered(
            {
                split: [(table.file, row) for table in own for row in range(table.rows)]
                for split, own in by_split.items()
            }
        )
        self._files = {name: np.concatenate([table.files[name] for table in tables]) for name in tables[0].files}
        self._texts = {name: [text for table in tables for text in table.texts[name]] for name in tables[0].texts}
        self._numbers = {name: np.concatenate([table.numbers[name] for table in tables]) for name in tables[0].numbers}
        self._clips = {name: self._clips_of(name) for name, wanted in self._inputs.items() if wanted == "sound"}
        names = tables[0].labels
        found = {name: _classes(np.concatenate([table.labels[name] for table in tables])) for name in names}
        self.classes = {name: classes for name, (classes, _) in found.items()}
        self.heads = {name: len(classes) for name, classes in self.classes.items()}
        self.targets = np.stack([labels_R for _, labels_R in found.values()], 1)
        self.labels = self.targets[:, 0]
        self.class_names = _named(self.classes)
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
        if self._texts:
            known = [texts[row] for texts in self._texts.values() for row in train]
            vocabulary = vocabulary_of(known, self._settings)
            self._tokens = {name: vocabulary.tokens(texts, length) for name, texts in self._texts.items()}
            self.notes = told_longer([text for texts in self._texts.values() for text in texts], length)
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
                found[name] = _numbers_preparation(wanted, self._numbers[name][train])
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
            contents = [(self._told(name, index), partial(Image.open, self._path(name, index))) for index in indices]
            return self._decoder.batch(contents, draws)
        if wanted == "sound":
            return self._clips[name].images(indices, draws)
        if wanted == "text":
            return augmented(self._tokens[name][indices], draws)
        return torch.from_numpy(self._numbers[name][indices])

    def _clips_of(self, name: str) -> WavClips:
        rows = range(len(self._places))
        files = [self._path(name, row) for row in rows]
        return WavClips(self._settings, files, [self._told(name, row) for row in rows])

    def _path(self, name: str, index: int) -> Path:
        return self._places[index][0].parent / str(self._files[name][index])

    def _told(self, name: str, index: int) -> str:
        """A file with its place, for messages."""
        table, row = self._places[index]
        return f"'{self._path(name, index)}' of row {row + 1} of '{table}'"


def _classes(names_R: NDArray[np.str_]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of classes, and the class of each row; whole numbers are sorted as numbers."""
    are_numbers = all(WHOLE.fullmatch(name) for name in np.unique(names_R))
    classes, labels_R = np.unique(names_R.astype(np.int64) if are_numbers else names_R, return_inverse=True)
    return tuple(map(str, classes.tolist())), labels_R


def _named(classes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of all classes; for several targets, `TARGET: CLASS`."""
    if len(classes) == 1:
        return next(iter(classes.values()))
    return tuple(f"{target}: {name}" for target, names in classes.items() for name in names)


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
    files: dict[str, NDArray[np.str_]] = {}
    texts: dict[str, list[str]] = {}
    numbers: dict[str, NDArray[np.float64]] = {}
    for name, wanted in settings.inputs.items():
        if isinstance(wanted, tuple):
            numbers[name] = np.stack([_numbers(where, one, _column(where, one, table)) for one in wanted], 1)
        elif wanted == "text":
            texts[name] = _written(where, name, _column(where, name, table))
        else:
            files[name] = _texts(where, name, _column(where, name, table))
            for row, one in enumerate(files[name], 1):
                named_file(where, row, name, one, file.parent, settings.path or file.parent)
    labels = {name: _texts(where, name, _column(where, name, table)) for name in settings.targets or (LABEL,)}
    return _Table(file, files, texts, numbers, labels, table.num_rows)


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


def _written(where: str, name: str, column: pyarrow.ChunkedArray) -> list[str]:
    found = ["" if one is None else str(one) for one in column.to_pylist()]
    for row, text in enumerate(found):
        if not words_of(text):
            got = f"row {row + 1}: column '{name}' has no words"
            raise UserError(where, got, next_step="fill or remove it")
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

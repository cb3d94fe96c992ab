"""Files with a JSON object in each line, of a text and its class: PATH/*.jsonl, or in folders train, val and test."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adaptive_runtime.texts import words_of
from tasks.data.settings import DataSettings, TextFields
from tasks.data.source import check_classes, complete_splits, split_folders, unreadable
from tasks.data.texts.tokens import TextSource
from tasks.errors import UserError, shortened

SUFFIX = ".jsonl"
MOST_BYTES = 2 << 30
"""Of all files together: texts are held in memory."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""JSON can spell it, and no file in UTF-8 can have it."""


class _Row(NamedTuple):
    text: str
    label: str | int


def open_jsonl(settings: DataSettings) -> tuple[TextSource, dict[str, np.ndarray]]:
    """The source and its splits. UserError: no files, too large ones, or a broken line, with its file and number."""
    assert settings.fields is not None
    rows: list[_Row] = []
    splits: dict[str, np.ndarray] = {}
    for split, files in _files(settings).items():
        found = [row for file in files for row in _rows(file, settings.fields)]
        splits[split] = np.arange(len(rows), len(rows) + len(found))
        rows += found
    names = _names({row.label for row in rows})
    if len(names) < 2:
        raise UserError(f"data folder '{settings.path}'", f"{len(names)} class of texts", allowed="two or more")
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[str(row.label)] for row in rows], dtype=np.int64)
    source = TextSource(settings, [row.text for row in rows], labels, names)
    check_classes(source, splits, settings)
    splits = complete_splits(splits, source, settings)
    source.learn_words(splits["train"], settings)
    return source, splits


def _names(labels: set[str | int]) -> list[str]:
    """Of the classes: whole numbers by their size where all labels are some, else by the alphabet."""
    whole = sorted(label for label in labels if isinstance(label, int))
    return list(map(str, whole)) if len(whole) == len(labels) else sorted(set(map(str, labels)))


def _files(settings: DataSettings) -> dict[str, list[Path]]:
    """The files of each split that has a folder of its own."""
    found: dict[str, list[Path]] = {}
    for split, folder in split_folders(settings).items():
        found[split] = sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)
        if not found[split]:
            raise UserError(f"data folder '{folder}'", "no files of texts", allowed=f"*{SUFFIX}")
    total = sum(_bytes(file) for files in found.values() for file in files)
    if total > MOST_BYTES:
        got = f"{total / 2**30:.1f} GiB of texts"
        raise UserError(
            f"data folder '{settings.path}'", got, allowed=f"{MOST_BYTES >> 30} GiB", next_step="give fewer"
        )
    return found


def _bytes(file: Path) -> int:
    """Of a file. UserError: there is none, as behind a link to nothing."""
    try:
        return file.stat().st_size
    except OSError as error:
        raise unreadable(file, error) from error


def _rows(file: Path, fields: TextFields) -> Iterator[_Row]:
    """The lines of a file; empty lines count, and are passed over. UserError: a line is not what it has to be."""
    number = 0
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _checked(file, number, line, fields)
    except OSError as error:
        raise UserError(f"texts '{file}'", f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        got = f"not UTF-8 after row {number}"
        raise UserError(f"texts '{file}'", got, next_step="write the file in UTF-8") from error
    if number == 0:
        raise UserError(f"texts '{file}'", "has no rows", next_step="remove it")


def _checked(file: Path, number: int, line: str, fields: TextFields) -> _Row:
    try:
        return _row(line, fields)
    except _BrokenLine as error:
        allowed = f'{{"{fields.text}": text, "{fields.label}": text or whole number}}'
        got = f"row {number}: {error}"
        raise UserError(f"texts '{file}'", got, allowed=allowed, next_step="mend or remove it") from error


class _BrokenLine(Exception):
    """What is wrong with a line."""


def _row(line: str, fields: TextFields) -> _Row:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BrokenLine(f"no JSON ({shortened(error, 80)})") from error
    if not isinstance(content, dict):
        raise _BrokenLine(f"{type(content).__name__}, not an object")
    if missing := [name for name in (fields.text, fields.label) if name not in content]:
        raise _BrokenLine(f"no field '{missing[0]}'")
    text, label = content[fields.text], content[fields.label]
    if not isinstance(text, str):
        raise _BrokenLine(f"field '{fields.text}' is {type(text).__name__}")
    if not words_of(text):
        raise _BrokenLine(f"field '{fields.text}' has no words")
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise _BrokenLine(f"field '{fields.label}' is {'empty' if label == '' else type(label).__name__}")
    for name, value in ((fields.text, text), (fields.label, label)):
        if isinstance(value, str) and not value.isascii() and _HALF_CHARACTER.search(value):
            raise _BrokenLine(f"field '{name}' has half a character (a lone surrogate)")
    return _Row(text, label)

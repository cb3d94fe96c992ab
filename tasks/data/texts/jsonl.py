"""Files with a JSON object per line: a text and its class, or the class of each word.

They are PATH/*.jsonl, or in folders train, val and test.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from adaptive_runtime.samples.texts import words_of
from tasks.base.errors import UserError, shortened
from tasks.data.settings import DataSettings, TextFields
from tasks.data.source import check_classes, complete_splits, split_folders, unreadable
from tasks.data.texts.tokens import TextSource

Read = TypeVar("Read")
SUFFIX = ".jsonl"
MOST_BYTES = 2 << 30
"""Limit of all files together: texts are held in memory."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A lone surrogate: valid in JSON, but impossible in a UTF-8 file."""


class _Row(NamedTuple):
    text: str
    label: str | int


Tagged = tuple[str, tuple[str, ...]]
"""A text, and the class of each of its words."""


def open_jsonl(settings: DataSettings) -> tuple[TextSource, dict[str, np.ndarray]]:
    """The source and its splits. UserError: no files, too large ones, or a broken line, with its file and number."""
    rows, splits = _read(settings, _row, "text or whole number")
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


def tagged_rows(settings: DataSettings) -> tuple[list[Tagged], dict[str, np.ndarray]]:
    """All texts with the classes of their words, and the texts of each split that has its own folder.

    UserError as `open_jsonl`.
    """
    return _read(settings, _tagged_row, "one name for each word")


def _read(
    settings: DataSettings, read: Callable[[str, TextFields], Read], allowed: str
) -> tuple[list[Read], dict[str, np.ndarray]]:
    """All lines, and the lines of each split that has its own folder. allowed: the form of a text's label."""
    assert settings.fields is not None
    rows: list[Read] = []
    splits: dict[str, np.ndarray] = {}
    for split, files in _files(settings).items():
        found = [row for file in files for row in _rows(file, settings.fields, read, allowed)]
        splits[split] = np.arange(len(rows), len(rows) + len(found))
        rows += found
    return rows, splits


def _names(labels: set[str | int]) -> list[str]:
    """Names of the classes: sorted as whole numbers if all labels are whole numbers, else alphabetically."""
    whole = sorted(label for label in labels if isinstance(label, int))
    return list(map(str, whole)) if len(whole) == len(labels) else sorted(set(map(str, labels)))


def _files(settings: DataSettings) -> dict[str, list[Path]]:
    """The files of each split that has its own folder."""
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
    """Bytes of a file. UserError: it cannot be read, e.g. a broken link."""
    try:
        return file.stat().st_size
    except OSError as error:
        raise unreadable(file, error) from error


def _rows(file: Path, fields: TextFields, read: Callable[[str, TextFields], Read], allowed: str) -> Iterator[Read]:
    """The lines of a file; empty lines are counted but skipped. UserError: a line is invalid.

    allowed: the form of a text's label.
    """
    number = 0
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _checked(file, number, line, fields, read, allowed)
    except OSError as error:
        raise UserError(f"texts '{file}'", f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        got = f"not UTF-8 after row {number}"
        raise UserError(f"texts '{file}'", got, next_step="write the file in UTF-8") from error
    if number == 0:
        raise UserError(f"texts '{file}'", "has no rows", next_step="remove it")


def _checked(
    file: Path, number: int, line: str, fields: TextFields, read: Callable[[str, TextFields], Read], label: str
) -> Read:
    try:
        return read(line, fields)
    except _BrokenLine as error:
        allowed = f'{{"{fields.text}": text, "{fields.label}": {label}}}'
        got = f"row {number}: {error}"
        raise UserError(f"texts '{file}'", got, allowed=allowed, next_step="mend or remove it") from error


class _BrokenLine(Exception):
    """The fault of a line."""


def _tagged_row(line: str, fields: TextFields) -> Tagged:
    text, tags = _fields(line, fields)
    count = len(words_of(text))
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        raise _BrokenLine(f"field '{fields.label}' is no list of names")
    if len(tags) != count:
        raise _BrokenLine(f"field '{fields.label}' has {len(tags)} names for {count} words")
    _check_characters((fields.text, text), *((fields.label, tag) for tag in tags))
    return text, tuple(tags)


def _row(line: str, fields: TextFields) -> _Row:
    text, label = _fields(line, fields)
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise _BrokenLine(f"field '{fields.label}' is {'empty' if label == '' else type(label).__name__}")
    _check_characters((fields.text, text), (fields.label, label))
    return _Row(text, label)


def _check_characters(*values: tuple[str, str | int]) -> None:
    for name, value in values:
        if isinstance(value, str) and not value.isascii() and _HALF_CHARACTER.search(value):
            raise _BrokenLine(f"field '{name}' has half a character (a lone surrogate)")


def _fields(line: str, fields: TextFields) -> tuple[str, Any]:
    """The text of a line, which has words, and its unchecked label."""
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
    return text, label

"""A folder into a backup, file by file, also while others write to it."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tasks.base.artifacts.aside import WORKED_IN
from tasks.base.errors import UserError
from tasks.operations.backup.manifest import BackedUpFile
from tasks.operations.backup.store import BackupStore

LOCK = ".lock"
PASSING = (".tmp", ".partial")
STAGES, REPLACED = "stages", ".old"
TRIES = 3
"""Walks through a folder in which files go while they are looked at."""


def is_passing(name: str) -> bool:
    """Whether it is on its way to another name, or of no use elsewhere: locks, temporary neighbours, stages being replaced."""
    first, *inner = PurePosixPath(name).parts
    return (first == STAGES and any(part.endswith(REPLACED) for part in inner)) or any(
        part == LOCK or (part.startswith(".") and part.endswith(PASSING)) for part in (first, *inner)
    )


def at_work(name: str) -> bool:
    """Whether it lies in the folder of a stage that is not finished."""
    return any(part.endswith(WORKED_IN) for part in PurePosixPath(name).parts)


def take_folder(store: BackupStore, folder: Path, wanted: Callable[[str], bool]) -> dict[str, BackedUpFile]:
    """Keep the files whose relative path is wanted. UserError: a link, or files that change faster than they are read."""
    for attempt in range(TRIES):
        try:
            return {name: store.put(folder / name) for name in _names(folder) if wanted(name) and not is_passing(name)}
        except FileNotFoundError as error:
            if attempt + 1 == TRIES:
                got = f"'{error.filename}' went while it was read"
                raise UserError(f"folder '{folder}'", got, next_step="try again when fewer runs are at work") from error
    raise AssertionError("the loop returns or raises")


def _names(folder: Path) -> Iterator[str]:
    """Relative paths of all files, in order. UserError: something is neither a file nor a folder, or a link."""
    for place, folders, files in os.walk(folder, onerror=_refuse):
        folders.sort()
        for path in (Path(place) / name for name in (*folders, *files)):
            if path.is_symlink():
                got = "is a link, which a backup does not follow"
                raise UserError(f"'{path}'", got, next_step="put what it leads to in its place")
        for path in (Path(place) / name for name in sorted(files)):
            if not stat.S_ISREG(path.stat().st_mode):
                raise UserError(f"'{path}'", "is no file", next_step="take it out of the folder")
            yield path.relative_to(folder).as_posix()


def _refuse(error: OSError) -> None:
    raise error

"""Folders at a URL, all or nothing: files by content, and a record, written last, that lists a folder's files.

    files/SHA256          the content of a file; folders with equal files share it
    NAME.json             the record of a folder: size and sha256 of each file, as in its `digests.json`

A file never changes under its name, so every writer writes the same content, and a folder exists once its record does. A file
that was transferred before is not transferred again, even if that was for another folder.
"""

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from flows.storage.objects import Objects
from tasks.base.artifacts.digests import DIGESTS_FILE, FORMAT, FileDigest, FolderRecord
from tasks.base.artifacts.files import write_bytes
from tasks.base.errors import UserError

FILES = "files"
DAMAGED = "damaged"
RECORD_END = ".json"
AT_ONCE = 8
"""Number of objects processed at a time."""

One = TypeVar("One")
Result = TypeVar("Result")


class DamagedObjectError(UserError):
    """An object's content does not match its name."""


def fetch(objects: Objects, name: str, folder: Path, arriving: Path) -> bool:
    """Download a folder, replacing a local one. False: it is not at the URL, or was damaged and set aside there.

    arriving: a folder for incomplete files, on the same disk. Files that are intact in either folder are not downloaded again.
    If another folder replaces it meanwhile, that one is downloaded.
    """
    content = objects.read(name + RECORD_END)
    if content is None:
        return False
    try:
        record = record_of(objects, name, content)
        if folder.exists() and FolderRecord.of(folder) == record:
            return True
        each(record.files.items(), lambda item: _download(objects, item[1], arriving / item[0], folder / item[0]))
    except DamagedObjectError:
        if objects.read(name + RECORD_END) != content:
            return fetch(objects, name, folder, arriving)
        _set_aside(objects, name, content)
        return False
    write_bytes(arriving / DIGESTS_FILE, content)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    arriving.rename(folder)
    return True


def publish(objects: Objects, name: str, folder: Path, record: FolderRecord, *, replace: bool = False) -> bool:
    """Upload a folder with the files in its record. False: a folder of this name exists, and is kept.

    The caller has announced it (`flows.storage.publishing`). replace: replace an existing folder.
    """
    contents = {digest.sha256: (folder / name, digest) for name, digest in record.files.items()}
    each(contents.values(), lambda one: _upload(objects, *one))
    if replace:
        objects.write(name + RECORD_END, record.content())
        return True
    return objects.create(name + RECORD_END, record.content())


def is_there(objects: Objects, name: str) -> bool:
    """Whether a folder is at the URL."""
    return objects.size(name + RECORD_END) is not None


def record_of(objects: Objects, name: str, content: bytes) -> FolderRecord:
    """The record of a folder. UserError if it cannot be read, or is of another version."""
    try:
        record = FolderRecord.model_validate_json(content)
    except ValidationError as error:
        got, hint = f"the record of {name} cannot be read", "the next run that needs this folder sets it aside"
        raise DamagedObjectError(f"storage '{objects.url}'", got, next_step=hint) from error
    if record.version != FORMAT:
        got = f"{name} has version {record.version}; this version of autotailor reads {FORMAT}"
        raise UserError(f"storage '{objects.url}'", got, next_step="choose another with output_dir=…")
    return record


def each(items: Iterable[One], work: Callable[[One], Result]) -> list[Result]:
    """Work on several objects at a time. The first error ends it, after current transfers are complete."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _download(objects: Objects, digest: FileDigest, file: Path, earlier: Path) -> None:
    """Download a file and check its content, or copy an intact earlier one. DamagedObjectError if it was wrong twice."""
    if _is_whole(file, digest):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if _is_whole(earlier, digest):
        shutil.copyfile(earlier, file)
        return
    for _ in range(2):
        if objects.download(f"{FILES}/{digest.sha256}", file) and _is_whole(file, digest):
            return
    if file.exists():
        objects.upload(file, f"{DAMAGED}/{digest.sha256}")
        objects.remove(f"{FILES}/{digest.sha256}")
        file.unlink()
    raise DamagedObjectError(f"storage '{objects.url}'", f"{FILES}/{digest.sha256} is damaged")


def _is_whole(file: Path, digest: FileDigest) -> bool:
    return file.is_file() and file.stat().st_size == digest.size and FileDigest.of(file) == digest


def _upload(objects: Objects, file: Path, digest: FileDigest) -> None:
    name = f"{FILES}/{digest.sha256}"
    if objects.size(name) != digest.size:
        objects.upload(file, name)


def _set_aside(objects: Objects, name: str, content: bytes) -> None:
    """Move the record of an incomplete folder away, so that the folder can be published again."""
    objects.write(f"{DAMAGED}/{name}{RECORD_END}", content)
    objects.remove(name + RECORD_END)

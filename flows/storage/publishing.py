"""Folders at a URL, all or nothing, published beside removals, and partial results of stages in progress.

    files/SHA256                        the content of a file; folders with equal files share it
    NAME.json                           the record of a folder: size and sha256 of each file, as in its `digests.json`
    publishing/ID.json                  the record of a folder that is being published: its files count as referred to
    unfinished/NAME/NUMBER/SHA256       files of a stage in progress; NUMBER is its lock holder's
    unfinished/NAME/NUMBER.json         the list of these files, written last, and the machine that they come from

A folder's record is written last. A file never changes under its name, so every writer writes the same content, and a
folder exists once its record does. A file that was transferred before is not transferred again, even if that was for
another folder.

Another machine may meanwhile remove contents that no folder refers to (`flows.storage.cleaning`). A publisher writes
the record in `publishing` first, and then waits for a removal in progress before it checks which files exist already. A
remover takes the lock first, and then reads all records. Either the remover sees this record, or the publisher waits
for it: a file that was found at the URL still exists when the folder's own record is written.

A machine that takes a stage over continues from its partial results. Lock holders never touch each other's files. Files
are captured as of one moment: by a link, since they are replaced as a whole; growing files with lines by a copy.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.storage.leases import LeaseLocks
from flows.storage.objects import Objects
from tasks.base.artifacts.files import write_bytes
from tasks.base.artifacts.folders import DIGESTS_FILE, FORMAT, FileDigest, FolderRecord
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
    """Download a folder, replacing a local one. False: it is not at the URL, or was damaged and quarantined there.

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
        objects.write(f"{DAMAGED}/{name}{RECORD_END}", content)  # the folder can then be published again
        objects.remove(name + RECORD_END)
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
    files = {digest: folder / name for name, digest in record.files.items()}

    def upload(digest: FileDigest) -> None:
        if objects.size(f"{FILES}/{digest.sha256}") != digest.size:
            objects.upload(files[digest], f"{FILES}/{digest.sha256}")

    each(files, upload)
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
        got, hint = f"the record of {name} cannot be read", "the next run that needs this folder quarantines it"
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


UNFINISHED = "unfinished"
LINES_END = ".jsonl"
ATTEMPTS = 5
"""Attempts to capture consistent files while the stage writes them."""


class Progressed(BaseModel):
    """The files of an unfinished stage. machine: the copy of the output folder that they come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    record: FolderRecord


@dataclass(slots=True)
class UnfinishedStage:
    """A stage worked under the lock of this number. folder: where it is worked. still: an empty folder beside it.

    machine: the unique name of this copy of the output folder.
    """

    objects: Objects
    name: str
    number: int
    folder: Path
    still: Path
    machine: str
    _brought: FolderRecord | None = field(init=False, default=None)

    def fetch(self) -> bool:
        """Download the latest holder's files. False: nothing to download, or this machine was the holder and has its files."""
        number, found = max(self._numbers(), default=0), None
        if number:
            with suppress(ValidationError):
                found = Progressed.model_validate_json(self.objects.read(self._record(number)) or b"")
        if found is None or (found.machine == self.machine and any(self.folder.iterdir())):
            return False
        shutil.rmtree(self.still, ignore_errors=True)
        for name, digest in found.record.files.items():
            file = self.still / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if not self.objects.download(self._file(number, digest), file) or FileDigest.of(file) != digest:
                shutil.rmtree(self.still)
                return False
        shutil.rmtree(self.folder)
        self.still.rename(self.folder)
        return True

    def publish(self) -> bool:
        """Upload the files if they have changed. False: no change, or the files changed during every attempt."""
        for _ in range(ATTEMPTS):
            if self._is_still():
                break
        else:
            return False
        record = FolderRecord.of(self.still)
        if not record.files or record == self._brought:
            return False
        there = set(self.objects.names(f"{UNFINISHED}/{self.name}/{self.number}"))
        for name, digest in record.files.items():
            if self._file(self.number, digest) not in there:
                self.objects.upload(self.still / name, self._file(self.number, digest))
        content = Progressed(machine=self.machine, record=record).model_dump_json().encode()
        self.objects.write(self._record(self.number), content)
        for old in there - {self._file(self.number, digest) for digest in record.files.values()}:
            self.objects.remove(old)
        self._forget([number for number in self._numbers() if number < self.number])
        self._brought = record
        return True

    def forget(self) -> None:
        """Remove the partial results: the stage is complete."""
        self._forget(self._numbers())

    def _is_still(self) -> bool:
        """Whether all files were captured without a change meanwhile."""
        shutil.rmtree(self.still, ignore_errors=True)
        before = _seen(self.folder)
        for file in before:
            taken = self.still / file.relative_to(self.folder)
            taken.parent.mkdir(parents=True, exist_ok=True)
            try:
                (shutil.copyfile if file.suffix == LINES_END else os.link)(file, taken)
            except FileNotFoundError:  # the stage has removed it, or is complete
                return False
        return before == _seen(self.folder)

    def _numbers(self) -> list[int]:
        place = f"{UNFINISHED}/{self.name}/"
        names = (name.removeprefix(place) for name in self.objects.names(place.rstrip("/")))
        return [int(name.removesuffix(".json")) for name in names if name.endswith(".json") and name[:-5].isdecimal()]

    def _forget(self, numbers: list[int]) -> None:
        """Remove records before files, so that no record lists missing files."""
        for number in numbers:
            self.objects.remove(self._record(number))
            for name in self.objects.names(f"{UNFINISHED}/{self.name}/{number}"):
                self.objects.remove(name)

    def _record(self, number: int) -> str:
        return f"{UNFINISHED}/{self.name}/{number}.json"

    def _file(self, number: int, digest: FileDigest) -> str:
        return f"{UNFINISHED}/{self.name}/{number}/{digest.sha256}"


def _seen(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size [bytes] and modification time [ns] of each file that is not temporary."""
    found = {}
    for place, _, names in os.walk(folder):  # folders that disappear meanwhile are left out
        for name in names:
            path = Path(place, name)
            with suppress(FileNotFoundError):
                state = path.stat()
                if not name.startswith("."):
                    found[path] = (state.st_size, state.st_mtime_ns)
    return found


PUBLISHING = "publishing"
CLEANING = "cleaning"
"""Name of the lock that removers hold."""


@contextmanager
def announced(
    objects: Objects, locks: LeaseLocks, record: FolderRecord, say: Callable[[str], None] = print
) -> Iterator[None]:
    """The block publishes a folder with this record; none of its files is removed meanwhile.

    say: is called with the machine whose removal it waits for.
    """
    name = f"{PUBLISHING}/{uuid4().hex}{RECORD_END}"
    objects.write(name, record.content())
    try:
        locks.pass_by(CLEANING, say)
        yield
    finally:
        with suppress(UserError):  # its files then stay a day longer
            objects.remove(name)

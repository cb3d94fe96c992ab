"""Partial results at a URL of a stage in progress: a machine that takes the stage over continues from there.

    unfinished/NAME/NUMBER/SHA256       its files; NUMBER is the lock holder's, so that holders never touch each other's files
    unfinished/NAME/NUMBER.json         the list of its files, written last, and the machine that they come from

Files are captured as of one moment: by a link, since they are replaced as a whole; growing files with lines by a copy.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.storage.objects import Objects
from tasks.base.artifacts.digests import FileDigest, FolderRecord

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
        number = max(self._numbers(), default=0)
        found = self._found(number) if number else None
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

    def _found(self, number: int) -> Progressed | None:
        try:
            return Progressed.model_validate_json(self.objects.read(self._record(number)) or b"")
        except ValidationError:
            return None

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

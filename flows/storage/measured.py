"""Measurements at a URL with many writers: immutable pieces with unique names, merged on reading.

    luts/DEVICE/part-….parquet      parts of look-up tables, as in a folder
    subnets/KEY/SHA256.jsonl        lines of measured SubNets that one machine had and nobody had uploaded yet
    subnets/KEY/key.json            the conditions that all lines of KEY share
    nights/TIME.json                records of nights, as in a folder

Nothing is locked and nothing is written twice: each machine uploads its own measurements.
"""

import hashlib
import re
from pathlib import Path

from flows.storage.objects import Objects
from tasks.base.artifacts.files import write_bytes
from tasks.base.artifacts.lines import intact_lines, merge_lines
from tasks.base.artifacts.measured import KEY_FILE, RECORDS_FILE
from tasks.base.schemas.operators import PARTS

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/part-[A-Za-z0-9._-]+\.parquet")
NIGHT = re.compile(r"[0-9]{8}T[0-9]{12}Z\.json")
PIECE = re.compile(r"[0-9a-f]{16}/[0-9a-f]{64}\.jsonl")
PIECES = "pieces"
"""Folder beside the lines of a key, for the pieces that were uploaded or downloaded."""
DAMAGED_END = ".damaged"


class SharedFiles:
    """Files that never change, in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path, files: str, names: re.Pattern[str]) -> None:
        """name: the folder at the URL; "": the URL itself. files: a glob of local files. names: pattern of the files that
        count.
        """
        self._objects = objects
        self._name = name
        self._folder = folder
        self._files = files
        self._names = names

    def fetch(self) -> int:
        """Download the missing files, and return their number. Files that were set aside here as damaged are skipped."""
        missing = [part for part in self._there() if not self._is_known(self._folder / part)]
        for part in missing:
            file = self._folder / part
            file.parent.mkdir(parents=True, exist_ok=True)
            arriving = file.with_name(f".{file.name}.tmp")
            if self._objects.download(self._at(part), arriving):
                arriving.replace(file)
        return len(missing)

    def publish(self) -> int:
        """Upload the files that are missing at the URL, and return their number."""
        there = set(self._there())
        own = [file.relative_to(self._folder).as_posix() for file in sorted(self._folder.glob(self._files))]
        new = [part for part in own if part not in there and self._names.fullmatch(part)]
        for part in new:
            self._objects.upload(self._folder / part, self._at(part))
        return len(new)

    def _there(self) -> list[str]:
        names = (name.removeprefix(self._name).lstrip("/") for name in self._objects.names(self._name))
        return [name for name in names if self._names.fullmatch(name)]

    def _at(self, part: str) -> str:
        return f"{self._name}/{part}".lstrip("/")

    @staticmethod
    def _is_known(file: Path) -> bool:
        return file.exists() or file.with_name(file.name + DAMAGED_END).exists()


class SharedTables(SharedFiles):
    """The look-up tables in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path) -> None:
        super().__init__(objects, name, folder, f"*/{PARTS}", PART)


class SharedNights(SharedFiles):
    """The records of nights in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path) -> None:
        super().__init__(objects, name, folder, "*.json", NIGHT)


class SharedLines:
    """The measured SubNets in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path) -> None:
        self._objects = objects
        self._name = name
        self._folder = folder

    def fetch(self) -> int:
        """Download the missing pieces, append their lines to the records, and return their number. Damaged ones are skipped."""
        found = 0
        for piece in self._there():
            key, _, name = piece.partition("/")
            file = self._folder / key / PIECES / name
            if file.exists():
                continue
            content = self._objects.read(f"{self._name}/{piece}") or b""
            if _name_of(content) != name:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            merge_lines(self._folder / key / RECORDS_FILE, content)
            write_bytes(file, content)
            found += 1
        return found

    def publish(self) -> int:
        """Upload the lines that are in no piece yet, one piece per key, and return the number of pieces."""
        new = 0
        for records in sorted(self._folder.glob(f"*/{RECORDS_FILE}")):
            folder, key = records.parent, records.parent.name
            pieces = folder / PIECES
            known = {line for piece in pieces.glob("*.jsonl") for line in intact_lines(piece.read_bytes())}
            content = b"".join(line for line in intact_lines(records.read_bytes()) if line not in known)
            if not content:
                continue
            self._objects.create(f"{self._name}/{key}/{KEY_FILE}", (folder / KEY_FILE).read_bytes())
            self._objects.write(f"{self._name}/{key}/{_name_of(content)}", content)
            pieces.mkdir(exist_ok=True)
            write_bytes(pieces / _name_of(content), content)
            new += 1
        return new

    def _there(self) -> list[str]:
        names = (name.removeprefix(f"{self._name}/") for name in self._objects.names(self._name))
        return [name for name in names if PIECE.fullmatch(name)]


def _name_of(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}.jsonl"

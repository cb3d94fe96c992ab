"""Digests of values and files, and the record of a folder's files that reveals damage."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from adaptive_runtime.base.files import sha256_of
from tasks.base.artifacts.files import write_bytes

DIGEST_LENGTH = 16
DIGESTS_FILE = "digests.json"
FORMAT = 1


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _add_path(digest: "hashlib._Hash", path: Path) -> None:
    for file in [path] if path.is_file() else _files(path):
        digest.update(str(file.relative_to(path) if file != path else file.name).encode())
        digest.update(bytes.fromhex(sha256_of(file)))


def digest_of(*parts: Any) -> str:
    """sha256 (first 16 hex characters) over JSON values and over the *content* of paths, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            _add_path(digest, part)
        else:
            digest.update(json.dumps(part, sort_keys=True, ensure_ascii=False).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:DIGEST_LENGTH]


def _inner(name: str) -> str:
    """The name, checked: ValueError if it leads out of its folder. Records also come from other machines."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ValueError("a file's name leads out of its folder")
    return name


class FileDigest(BaseModel):
    """Size [bytes] and sha256 (hex) of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of(cls, file: Path) -> "FileDigest":
        """The digest of the current file."""
        return cls(size=file.stat().st_size, sha256=sha256_of(file))


class FolderRecord(BaseModel):
    """All files of a folder by their relative path."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: int = FORMAT
    files: dict[Annotated[str, AfterValidator(_inner)], FileDigest]

    @classmethod
    def of(cls, folder: Path) -> "FolderRecord":
        """The record of a folder's current files, except `digests.json`."""
        files = [file for file in _files(folder) if file != folder / DIGESTS_FILE]
        with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
            found = list(pool.map(FileDigest.of, files))
        names = [file.relative_to(folder).as_posix() for file in files]
        return cls(files=dict(zip(names, found, strict=True)))

    def content(self) -> bytes:
        """The stored form: JSON bytes."""
        return (self.model_dump_json(indent=1) + "\n").encode()


def record(folder: Path) -> None:
    """Write `digests.json`: size and sha256 of every file in the folder."""
    write_bytes(folder / DIGESTS_FILE, FolderRecord.of(folder).content())


def damage(folder: Path) -> str | None:
    """The damage of a recorded folder, in a few words; None when every file matches its record.

    Every byte is read. Files that are not in the record are ignored.
    """
    try:
        known = FolderRecord.model_validate_json((folder / DIGESTS_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return f"no {DIGESTS_FILE}"
    except (OSError, ValidationError):
        return f"{DIGESTS_FILE} cannot be read"
    if known.version != FORMAT:
        return f"{DIGESTS_FILE} has version {known.version}; this version of autotailor reads {FORMAT}"
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda pair: _difference(folder / pair[0], pair[1]), known.files.items())
    return next((f"{name} {what}" for name, what in zip(known.files, found, strict=True) if what), None)


def _difference(file: Path, known: FileDigest) -> str | None:
    try:
        size = file.stat().st_size
        if size != known.size:
            return f"has {size} bytes instead of {known.size}"
        return None if sha256_of(file) == known.sha256 else "has another content"
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"

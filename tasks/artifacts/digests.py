"""Digests of values and files, and the record of a folder's files by which damage is found."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.artifacts.files import write_bytes

DIGEST_LENGTH = 16
DIGESTS_FILE = "digests.json"
FORMAT = 1


def _sha256(file: Path) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _add_path(digest: "hashlib._Hash", path: Path) -> None:
    for file in [path] if path.is_file() else _files(path):
        digest.update(str(file.relative_to(path) if file != path else file.name).encode())
        digest.update(_sha256(file))


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


class _FileDigest(BaseModel):
    """Size [bytes] and sha256 (hex) of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int
    sha256: str

    @classmethod
    def of(cls, file: Path) -> "_FileDigest":
        """The file as it is now."""
        return cls(size=file.stat().st_size, sha256=_sha256(file).hex())


class _FolderRecord(BaseModel):
    """All files of a folder by their relative path."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: int
    files: dict[str, _FileDigest]


def record(folder: Path) -> None:
    """Write `digests.json`: size and sha256 of every file in the folder."""
    files = [file for file in _files(folder) if file != folder / DIGESTS_FILE]
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter's lock
        found = list(pool.map(_FileDigest.of, files))
    names = [file.relative_to(folder).as_posix() for file in files]
    content = _FolderRecord(version=FORMAT, files=dict(zip(names, found, strict=True)))
    write_bytes(folder / DIGESTS_FILE, (content.model_dump_json(indent=1) + "\n").encode())


def damage(folder: Path) -> str | None:
    """The damage of a recorded folder, in a few words; None when every file is as it was recorded.

    Every byte is read. Files that are not in the record are not looked at.
    """
    try:
        known = _FolderRecord.model_validate_json((folder / DIGESTS_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return f"no {DIGESTS_FILE}"
    except (OSError, ValidationError):
        return f"{DIGESTS_FILE} cannot be read"
    if known.version != FORMAT:
        return f"{DIGESTS_FILE} has version {known.version}; this version of autotailor reads {FORMAT}"
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda pair: _difference(folder / pair[0], pair[1]), known.files.items())
    return next((f"{name} {what}" for name, what in zip(known.files, found, strict=True) if what), None)


def _difference(file: Path, known: _FileDigest) -> str | None:
    try:
        size = file.stat().st_size
        if size != known.size:
            return f"has {size} bytes instead of {known.size}"
        return None if _sha256(file).hex() == known.sha256 else "has another content"
    except OSError as error:
        return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"

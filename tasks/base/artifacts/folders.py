"""Folders of stages, named by digest, complete or absent, so that a killed run can resume, and stores of measurements.

A stage works in `<store>/<stage>/<key>.partial/`; `publish` records the digests of its files and renames the folder to
`<store>/<stage>/<key>/`. A folder whose files no longer match the record is quarantined, and its stage runs again. The
key contains all settings except fields marked as outside of it.

Measurements of SubNets are lines in a stage's own folder, and records of a store that stages and runs share. A stage
resumes from its own lines; its folder holds every measurement of its result. A record's key holds all conditions of the
measurement. A stage copies the store's records of a SubNet instead of measuring it.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from adaptive_runtime.base.files import sha256_of
from tasks.base.artifacts.files import (
    WORKED_IN,
    append_line,
    append_lines,
    damaged_lines,
    quarantine,
    read_json,
    read_lines,
    write_bytes,
    write_json,
    write_whole_lines,
)
from tasks.base.errors import UserError
from tasks.base.progress import Progress

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


@dataclass(frozen=True, slots=True)
class OutsideKey:
    """Marks a field of settings, `Annotated[int, OutsideKey(why)]`: changing its value makes no stage run again.

    why: the reason why the result stays the same, or the part of the key that replaces the field.
    """

    why: str


def key_settings(settings: BaseModel, *parts: type[BaseModel]) -> dict[str, Any]:
    """The settings that are part of a key, as JSON. `parts`: base classes of the settings; only their fields are taken."""
    of_parts = {name for part in parts for name in part.model_fields} if parts else None
    return settings.model_dump(mode="json", include=of_parts, exclude=outside_key(settings))


def outside_key(settings: BaseModel) -> dict[str, Any]:
    """The marked fields: name -> True; a field that holds settings -> the marked fields of these."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if any(isinstance(mark, OutsideKey) for mark in field.metadata):
            found[name] = True
        elif isinstance(value, BaseModel) and (inner := outside_key(value)):
            found[name] = inner
    return found


RESULT_FILE = "result.json"
MADE_FROM_FILE = "made_from.json"
LINES = "*.jsonl"


@dataclass(frozen=True, slots=True)
class StageFolder:
    """The output folder of one stage under one key. `anew`: the stage runs again and replaces a complete folder."""

    final: Path
    anew: bool = False
    mended: tuple[str, ...] = ()
    """One message for each damaged file or folder that was quarantined when the folder was opened."""

    @property
    def complete(self) -> bool:
        """Whether an earlier run has published this folder and it may be reused."""
        return not self.anew and (self.final / RESULT_FILE).exists()

    @property
    def path(self) -> Path:
        """The folder to read if complete, else the folder to work in."""
        return self.final if self.complete else self.partial

    @property
    def partial(self) -> Path:
        """The folder to work in."""
        return self.final.with_name(self.final.name + WORKED_IN)

    def publish(self, result: dict[str, Any], made_from: "MadeFrom | None" = None) -> Path:
        """Write result.json and the digests of all files, and rename the partial folder to its final name."""
        partial = self.path
        write_json(partial / RESULT_FILE, result)
        if made_from:
            write_bytes(partial / MADE_FROM_FILE, (made_from.model_dump_json(indent=1) + "\n").encode())
        record(partial)
        replaced = self.final.with_name(self.final.name + ".old")
        if self.final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            self.final.rename(replaced)
        partial.rename(self.final)
        shutil.rmtree(replaced, ignore_errors=True)
        return self.final

    def result(self) -> dict[str, Any]:
        """The result that the stage returned when it was published."""
        result: dict[str, Any] = read_json(self.final / RESULT_FILE)
        return result


class MadeFrom(BaseModel):
    """The settings and code that a folder was made from; they explain why a later key differs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    code: str

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """The record in a folder; None without a readable one."""
        try:
            return cls.model_validate_json((folder / MADE_FROM_FILE).read_bytes())
        except (OSError, ValidationError):
            return None


def _mend(folder: StageFolder) -> Iterator[str]:
    """Quarantine the damaged files of a folder, published or partial; yields one message for each."""
    if folder.final.exists() and not folder.anew and (what := damage(folder.final) or _no_result(folder.final)):
        place = quarantine(folder.final, folder.final)
        yield f"stored files are damaged ({what}): quarantined as '{place}' and made again"
    for file in sorted(folder.partial.rglob(LINES)) if not folder.complete else ():
        if said := mend_lines(file, folder.partial):
            yield said


def _no_result(final: Path) -> str | None:
    """The fault of a result that matches its record but is unreadable or empty; None if it has content."""
    try:
        result = read_json(final / RESULT_FILE)
    except (OSError, ValueError):
        return f"{RESULT_FILE} cannot be read"
    return None if isinstance(result, dict) and result else f"{RESULT_FILE} has no result"


def mend_lines(file: Path, folder: Path) -> str | None:
    """Quarantine a file that has damaged lines and keep its intact lines; returns a message, or None if nothing was damaged."""
    if not (count := damaged_lines(file)):
        return None
    place = quarantine(file, folder)
    write_whole_lines(place, file)
    return f"{count} lines of {file.name} are damaged: quarantined as '{place}', the others are used"


@dataclass(frozen=True, slots=True)
class Store:
    """The root folder that holds all stage folders."""

    root: Path

    def folder(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of `stage` under `key`; nothing is checked, repaired or created."""
        return StageFolder(self.root / stage / key, anew)

    def finished(self, stage: str) -> list[Path]:
        """Complete folders of `stage` under any key, the latest first."""
        found = [file.parent for file in (self.root / stage).glob(f"*/{RESULT_FILE}") if not file.parent.suffix]
        return sorted(found, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)

    def open_stage(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of `stage` under `key`, checked; created when absent. UserError when the root cannot be written."""
        final = self.root / stage / key
        try:
            folder = StageFolder(final, anew, tuple(_mend(StageFolder(final, anew))))
            folder.path.mkdir(parents=True, exist_ok=True)
            if not os.access(folder.path, os.W_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            raise UserError(
                f"output folder '{self.root}'",
                f"cannot be written ({error.strerror})",
                next_step="choose another with output_dir=PATH",
            ) from error
        return folder


KEY_FILE = "key.json"
RECORDS_FILE = "subnets.jsonl"

_OPENING = threading.Lock()  # devices are processed in parallel


@dataclass(frozen=True, slots=True)
class SubNetLines:
    """Measured SubNets. own: the stage's file of lines, with the digest as `name`. shared: the file of the store's records.

    anew: the stage measures every SubNet itself and copies no records.
    """

    own: Path
    name: Literal["key", "digest"]
    shared: Path | None = None
    anew: bool = False

    def read(self, digests: Collection[str]) -> list[Any]:
        """The own lines, as JSON. For SubNets of `digests` without an own line, the store's lines are copied first."""
        lines = read_lines(self.own)
        if self.shared is None or self.anew:
            return lines
        missing = set(digests) - {line[self.name] for line in lines}
        taken = (
            [record["measured"] for record in read_lines(self.shared) if record["digest"] in missing] if missing else []
        )
        append_lines(self.own, taken)
        return [*lines, *taken]

    def append(self, line: Mapping[str, Any], *, shared: bool = True) -> None:
        """Append a line to the own file and, with `shared`, to the store."""
        append_line(self.own, line)
        if self.shared is not None and shared:
            append_line(self.shared, {"digest": line[self.name], "measured": line})


@dataclass(frozen=True, slots=True)
class SubNetStore:
    """Records of measured SubNets, one folder per key. folder: None shares nothing.

    code, data: digests of the measuring code and of the images, parts of every key.
    """

    folder: Path | None = None
    code: str = ""
    data: str = ""

    def open(self, key: Mapping[str, Any], progress: Progress) -> Path | None:
        """The file of a key's records. Damaged lines are quarantined. key: the conditions of a measurement, as JSON."""
        if self.folder is None:
            return None
        whole = {**key, "code": self.code, "data": self.data}
        folder = self.folder / digest_of(whole)
        with _OPENING:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / KEY_FILE).exists():
                write_json(folder / KEY_FILE, whole)
            if said := mend_lines(folder / RECORDS_FILE, folder):
                progress.say(f"measured SubNets: {said}")
        return folder / RECORDS_FILE


NO_STORE = SubNetStore()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The place of a stage's work: its folder `out`, its listener, and the records of SubNets that stages share."""

    out: Path
    progress: Progress
    store: SubNetStore = NO_STORE

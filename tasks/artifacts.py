"""Artifacts between stages: folders named by digest, whole or absent, so that a killed run can go on.

A stage works in `<store>/<stage>/<key>.partial/`; `publish` renames it to `<store>/<stage>/<key>/`.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tasks.errors import UserError

DIGEST_LENGTH = 16
RESULT_FILE = "result.json"


def _add_path(digest: "hashlib._Hash", path: Path) -> None:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for file in files:
        digest.update(str(file.relative_to(path) if file != path else file.name).encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())


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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: temporary neighbour, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a file would fill a full disk for good
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line and flush it to disk; a torn last line (killed while writing) is cut off first."""
    with path.open("a+b") as stream:
        _cut_torn_line(stream)
        stream.write((json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode())
        stream.flush()
        os.fsync(stream.fileno())


def _cut_torn_line(stream: BinaryIO) -> None:
    if not stream.seek(0, os.SEEK_END):
        return
    stream.seek(-1, os.SEEK_END)
    if stream.read(1) != b"\n":
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)


def read_lines(path: Path) -> list[Any]:
    """JSON lines of a file that may be absent; a torn last line (killed while writing) is left out."""
    if not path.exists():
        return []
    return list(_whole_lines(path.read_text(encoding="utf-8").split("\n")))


def _whole_lines(lines: list[str]) -> Iterable[Any]:
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise


@dataclass(frozen=True, slots=True)
class StageFolder:
    """The output folder of one stage under one key. `anew`: what is complete is worked again and then replaced."""

    final: Path
    anew: bool = False

    @property
    def complete(self) -> bool:
        """Whether an earlier run has published this folder, and that is good enough."""
        return not self.anew and (self.final / RESULT_FILE).exists()

    @property
    def path(self) -> Path:
        """Where to read (complete) or to work (not yet)."""
        return self.final if self.complete else self.final.with_name(self.final.name + ".partial")

    def publish(self, result: dict[str, Any]) -> Path:
        """Write result.json and rename the partial folder to its final name."""
        partial = self.path
        write_json(partial / RESULT_FILE, result)
        replaced = self.final.with_name(self.final.name + ".old")
        if self.final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            self.final.rename(replaced)
        partial.rename(self.final)
        shutil.rmtree(replaced, ignore_errors=True)
        return self.final

    def result(self) -> dict[str, Any]:
        """What the stage returned when it was published."""
        result: dict[str, Any] = read_json(self.final / RESULT_FILE)
        return result


@dataclass(frozen=True, slots=True)
class Store:
    """The root folder that holds all stage folders."""

    root: Path

    def open_stage(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of `stage` under `key`; made when absent. UserError when the root cannot be written."""
        folder = StageFolder(self.root / stage / key, anew)
        try:
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

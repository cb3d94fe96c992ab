"""Files of stages: atomic writing, quarantine of damaged files, and JSON lines with checksums.

Damaged files are quarantined for inspection before new files replace them. Files of JSON lines grow while a stage
works. `crc32`, the last member of each line, is the checksum of the line without it. It detects damaged lines even if
they still parse.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from adaptive_runtime.base.files import json_of
from tasks.base.errors import UserError

WORKED_IN = ".partial"


def quarantine(path: Path, folder: Path) -> Path:
    """Move a damaged file or folder into quarantine; returns its new path.

    folder: the stage's folder, under its final or its `.partial` name. The folder itself moves to `KEY.damaged-N`, one of its
    files to `KEY.damaged-N/FILE`.
    """
    key = folder.name.removesuffix(WORKED_IN)
    places = (folder.with_name(f"{key}.damaged-{number}") for number in count(1))
    place = next(place for place in places if not place.exists())
    if path != folder:
        place.mkdir(parents=True)
        place = place / path.name
    path.rename(place)
    return place


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: temporary neighbour, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a partial file would keep a full disk full
        if error.filename is None:  # a write does not name its file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def json_bytes(value: Any) -> bytes:
    """The stored form of a JSON value."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, json_bytes(value))


def read_json(path: Path) -> Any:
    """Read JSON."""
    return json_of(path.read_text(encoding="utf-8"))


CHECK = ', "crc32": "'
CHECKED = len(CHECK) + 8 + len('"}')


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def line_of(value: Mapping[str, Any]) -> str:
    """A line with checksum and line end from a JSON object that is not empty."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return f'{text[:-1]}{CHECK}{_checksum(text)}"}}\n'


def _value(line: bytes) -> dict[str, Any] | None:
    """The content of a line; None when it is damaged."""
    try:
        text = line.decode()
        inner, check = text[:-CHECKED] + "}", text[-CHECKED:]
        if check != f'{CHECK}{_checksum(inner)}"}}':
            return None
        value: dict[str, Any] = json.loads(inner)
    except ValueError:  # also of decoding
        return None
    return value


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line; see `append_lines`."""
    append_lines(path, [value])


def append_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines and flush them to disk; a torn last line (killed while writing) is cut off first.

    Threads and processes may append to one file.
    """
    if not values:
        return
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # until it is closed
        _cut_torn_line(stream)
        stream.write("".join(map(line_of, values)).encode())
        stream.flush()
        os.fsync(stream.fileno())


def merge_lines(path: Path, content: bytes) -> None:
    """Append the whole lines of another file's content that this file, which may be absent, does not have."""
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # until it is closed
        _cut_torn_line(stream)
        stream.seek(0)
        known = set(stream.read().splitlines(keepends=True))
        stream.writelines(line for line in intact_lines(content) if line not in known)
        stream.flush()
        os.fsync(stream.fileno())


def intact_lines(content: bytes) -> list[bytes]:
    """The undamaged lines of a file's content as raw bytes, without repeats."""
    lines = dict.fromkeys(line + b"\n" for line in content.split(b"\n")[:-1])
    return [line for line in lines if _value(line[:-1]) is not None]


def _cut_torn_line(stream: BinaryIO) -> None:
    if not stream.seek(0, os.SEEK_END):
        return
    stream.seek(-1, os.SEEK_END)
    if stream.read(1) != b"\n":
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)


def _lines(path: Path) -> list[bytes]:
    """The lines with a line end: a torn last line (killed while writing) is left out."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # also if another process publishes the stage meanwhile
        return []
    return content.split(b"\n")[:-1]


def read_lines(path: Path) -> list[Any]:
    """The JSON lines of a file that may be absent. UserError names a damaged line."""
    lines = _lines(path)
    found = [_value(line) for line in lines]
    if None in found:
        number = found.index(None) + 1
        raise UserError(f"'{path}'", f"line {number} of {len(lines)} is damaged", next_step="remove the file's folder")
    return found


def whole_lines(content: bytes) -> Iterator[dict[str, Any]]:
    """The values of the undamaged lines of a file's content."""
    return (value for line in content.splitlines() if (value := _value(line)) is not None)


def damaged_lines(path: Path) -> int:
    """The number of damaged lines."""
    return sum(_value(line) is None for line in _lines(path))


def write_whole_lines(source: Path, path: Path) -> None:
    """Write the undamaged lines of `source`, unchanged, to a file."""
    kept = (line + b"\n" for line in _lines(source) if _value(line) is not None)
    write_bytes(path, b"".join(kept))

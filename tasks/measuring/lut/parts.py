"""Parquet parts in one folder: written atomically by any number of processes, and compacted while others read.

There are no locks. Names are unique; rows carry their time, so repeated rows do no harm; a part is removed only when another
part with its rows is safely on disk.
"""

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.operators import PARTS
from tasks.measuring.lut.entry import SCHEMA, Row, as_schema, device_of

LEFTOVERS = ".part-*.tmp"
LEFTOVER_AGE = timedelta(hours=1)
DIGEST = re.compile(r"-sha256\.([0-9a-f]{16})\.parquet$")
"""The digest of a part's content in its name; parts written by earlier versions have none."""
ATTEMPTS = 100


class DamagedPartError(UserError):
    """A part cannot be read as a Parquet file or does not match its digest."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The content of a folder: its files, and their rows in any order."""

    files: tuple[Path, ...] = ()
    rows: list[Row] = field(default_factory=list)


def read(folder: Path) -> Parts:
    """All parts of `folder`; empty if it does not exist. UserError names a part that cannot be read."""
    for _ in range(ATTEMPTS):
        files = _listing(folder)
        try:
            return Parts(files, [row for file in files for row in _read(file)])
        except FileNotFoundError:
            continue  # compacted meanwhile: the rows are in another part
    raise UserError(f"LUT '{folder}'", f"changed {ATTEMPTS} times while it was read", next_step="try again")


def mend(folder: Path) -> Iterator[str]:
    """Quarantine each unreadable part as `part-….parquet.damaged`; yields one message for each."""
    for part in _listing(folder):
        try:
            _read(part)
        except FileNotFoundError:
            continue  # compacted meanwhile
        except DamagedPartError:
            place = part.with_name(f"{part.name}.damaged")
            part.rename(place)
            yield f"a part of the look-up table is damaged: set aside as '{place}', its operators are measured again"


def write(folder: Path, rows: Iterable[Row], name: str | None = None) -> Path:
    """Write one more part; it is on disk when the call returns. UserError if it cannot be written; then nothing is written."""
    stream = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    parquet.write_table(table, stream, compression="zstd")
    path = folder / (name or _unique_name(stream.getvalue()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, stream.getvalue())
        _sync(folder)
    except OSError as error:
        next_step = "make room or choose another folder; the same command goes on from here"
        raise UserError(f"LUT '{folder}'", f"cannot be written ({error.strerror})", next_step=next_step) from error
    return path


def compact(folder: Path) -> tuple[int, int]:
    """Merge the latest rows of all parts into one part; returns (parts before, remaining rows).

    Concurrent readers find every row, in the old parts or in the new part; rows that another process appends meanwhile stay;
    nothing is lost if the process is killed.
    """
    parts = read(folder)
    rows = sorted(
        latest(parts.rows), key=lambda row: (row["digest"], row["method"], row["settings"], row["implementation"])
    )
    if len(parts.files) > 1:
        write(folder, rows)
        for file in parts.files:
            file.unlink(missing_ok=True)  # another compaction may have been faster
    oldest = (datetime.now(UTC) - LEFTOVER_AGE).timestamp()
    for leftover in folder.glob(LEFTOVERS):  # written by killed writers
        with suppress(FileNotFoundError):  # a live writer has just renamed it
            if leftover.stat().st_mtime < oldest:
                leftover.unlink()
    return len(parts.files), len(rows)


def latest(rows: Iterable[Row]) -> list[Row]:
    """The latest row for each device, operator, method, settings and implementation."""
    chosen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (device_of(row), row["digest"], row["method"], row["settings"], row["implementation"])
        if key not in chosen or _order(chosen[key]) < _order(row):
            chosen[key] = row
    return list(chosen.values())


def _order(row: Row) -> tuple[object, ...]:
    """The sort key of rows: time first; the rest decides between rows of the same time, in any reading order."""
    return row["measured_at"], row["state"] != "failed", row["n"], str(row["p50_ms"]), str(row["reason"])


def _listing(folder: Path) -> tuple[Path, ...]:
    """All parts, listed until two listings agree: a single listing may miss both a part and its replacement."""
    before: tuple[Path, ...] | None = None
    for _ in range(ATTEMPTS):
        files = tuple(sorted(folder.glob(PARTS)))
        if files == before:
            return files
        before = files
    raise UserError(f"LUT '{folder}'", f"changed {ATTEMPTS} times while it was listed", next_step="try again")


def _read(part: Path) -> list[Row]:
    where = f"LUT part '{part}'"
    try:
        content = part.read_bytes()
        known = DIGEST.search(part.name)
        if known is not None and known[1] != _digest(content):
            raise OSError("it has another content than it was written with")
        rows: list[Row] = as_schema(parquet.read_table(pa.BufferReader(content)), where).to_pylist()
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        next_step = "remove the file; its operators are then measured again"
        raise DamagedPartError(where, f"cannot be read ({error})", next_step=next_step) from error
    return rows


def _unique_name(content: bytes) -> str:
    return f"part-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid4().hex[:12]}-sha256.{_digest(content)}.parquet"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _sync(folder: Path) -> None:
    """Flush the names of a folder's files to disk before anything relies on them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

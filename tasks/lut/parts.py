"""Parquet parts in one folder: written whole or not at all, by any number of processes, and compacted while others read.

Nothing is locked. Names are unique; rows say themselves which is the latest, so a row that is there twice does no
harm; a part is removed only when another that holds its rows is safely on disk.
"""

import io
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from tasks.artifacts import write_bytes
from tasks.errors import UserError
from tasks.lut.entry import SCHEMA, Row, as_schema, device_of

PARTS = "part-*.parquet"
LEFTOVERS = ".part-*.tmp"
LEFTOVER_AGE = timedelta(hours=1)
ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Parts:
    """What was read of a folder: the files, and their rows in no order that counts."""

    files: tuple[Path, ...] = ()
    rows: list[Row] = field(default_factory=list)


def read(folder: Path) -> Parts:
    """All parts of `folder` (none when it does not exist). UserError names a part that cannot be read."""
    for _ in range(ATTEMPTS):
        files = _listing(folder)
        try:
            return Parts(files, [row for file in files for row in _read(file)])
        except FileNotFoundError:
            continue  # compacted meanwhile: its rows are in another part
    raise UserError(f"LUT '{folder}'", f"changed {ATTEMPTS} times while it was read", next_step="try again")


def write(folder: Path, rows: Iterable[Row], name: str | None = None) -> Path:
    """One more part; it is on disk when this returns. UserError when it cannot be written: then nothing is."""
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), stream, compression="zstd")
    path = folder / (name or _unique_name())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, stream.getvalue())
        _sync(folder)
    except OSError as error:
        next_step = "make room or choose another folder; the same command goes on from here"
        raise UserError(f"LUT '{folder}'", f"cannot be written ({error.strerror})", next_step=next_step) from error
    return path


def compact(folder: Path) -> tuple[int, int]:
    """Put the latest rows of all parts into one part; returns (parts before, rows that are left).

    A reader at the same time finds every row, in the old parts or in the new one; what another process appends
    meanwhile stays; killed anywhere, nothing is lost.
    """
    parts = read(folder)
    rows = sorted(latest(parts.rows), key=lambda row: (row["digest"], row["method"], row["settings"]))
    if len(parts.files) > 1:
        write(folder, rows)
        for file in parts.files:
            file.unlink(missing_ok=True)  # another compaction may have been faster
    oldest = (datetime.now(UTC) - LEFTOVER_AGE).timestamp()
    for leftover in folder.glob(LEFTOVERS):  # of writers that were killed
        with suppress(FileNotFoundError):  # of one that is alive, and has just given it its name
            if leftover.stat().st_mtime < oldest:
                leftover.unlink()
    return len(parts.files), len(rows)


def latest(rows: Iterable[Row]) -> list[Row]:
    """One row for each device, operator, method and settings: the one that was measured last."""
    chosen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (device_of(row), row["digest"], row["method"], row["settings"])
        if key not in chosen or _order(chosen[key]) < _order(row):
            chosen[key] = row
    return list(chosen.values())


def _order(row: Row) -> tuple[object, ...]:
    """By time; the rest decides between rows of one moment, the same way in whatever order they are read."""
    return row["measured_at"], row["state"] != "failed", row["n"], str(row["p50_ms"]), str(row["reason"])


def _listing(folder: Path) -> tuple[Path, ...]:
    """All parts. Listed until two listings agree: one alone may miss both a part and the one that took its place."""
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
        table = parquet.read_table(pa.BufferReader(part.read_bytes()))
        rows: list[Row] = as_schema(table, where).to_pylist()
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        next_step = "remove the file; its operators are then measured again"
        raise UserError(where, f"cannot be read ({error})", next_step=next_step) from error
    return rows


def _unique_name() -> str:
    return f"part-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid4().hex[:12]}.parquet"


def _sync(folder: Path) -> None:
    """The names of a folder's files on disk, before anything relies on them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

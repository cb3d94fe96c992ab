"""The look-up table of one device in a folder of Parquet parts, and a store with one folder per device.

A table has an entry for each measurement of an operator; networks, runs and processes share the store. Any number of
processes write parts atomically, and compact them while others read. There are no locks. Names are unique; rows carry
their time, so repeated rows do no harm; a part is removed only when another part with its rows is safely on disk.
"""

import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.placed import PARTS
from tasks.measuring.lut.choice import position_of_chosen
from tasks.measuring.lut.entry import (
    METHODS,
    SCHEMA,
    DeviceKey,
    Entry,
    ProfilingMethod,
    Row,
    as_schema,
    complaint,
    device_of,
    entry_of,
    row_of,
)

if TYPE_CHECKING:  # reading tables must not load torch
    from tailor_ir import OperatorFeature

LEFTOVERS = ".part-*.tmp"
LEFTOVER_AGE = timedelta(hours=1)
DIGEST = re.compile(r"-sha256\.([0-9a-f]{16})\.parquet$")
"""The digest of a part's content in its name; parts written by earlier versions have none."""
ATTEMPTS = 100


class DamagedPartError(UserError):
    """A part cannot be read as a Parquet file or does not match its digest."""


def read(folder: Path) -> tuple[tuple[Path, ...], list[Row]]:
    """All parts of `folder` and their rows; empty if it does not exist. UserError names a part that cannot be read."""
    for _ in range(ATTEMPTS):
        files = _listing(folder)
        try:
            return files, [row for file in files for row in _read(file)]
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
            yield f"a part of the look-up table is damaged: quarantined as '{place}', its operators are measured again"


def write(folder: Path, rows: Iterable[Row], name: str | None = None) -> Path:
    """Write one more part; it is on disk when the call returns. UserError if it cannot be written; then nothing is written."""
    stream = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    parquet.write_table(table, stream, compression="zstd")
    digest = hashlib.sha256(stream.getvalue()).hexdigest()[:16]
    unique = f"part-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid4().hex[:12]}-sha256.{digest}.parquet"
    path = folder / (name or unique)
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
    files, found = read(folder)
    rows = sorted(latest(found), key=lambda row: (row["digest"], row["method"], row["settings"], row["implementation"]))
    if len(files) > 1:
        write(folder, rows)
        for file in files:
            file.unlink(missing_ok=True)  # another compaction may have been faster
    oldest = (datetime.now(UTC) - LEFTOVER_AGE).timestamp()
    for leftover in folder.glob(LEFTOVERS):  # written by killed writers
        with suppress(FileNotFoundError):  # a live writer has just renamed it
            if leftover.stat().st_mtime < oldest:
                leftover.unlink()
    return len(files), len(rows)


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
        if known is not None and known[1] != hashlib.sha256(content).hexdigest()[:16]:
            raise OSError("it has another content than it was written with")
        rows: list[Row] = as_schema(parquet.read_table(pa.BufferReader(content)), where).to_pylist()
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        next_step = "remove the file; its operators are then measured again"
        raise DamagedPartError(where, f"cannot be read ({error})", next_step=next_step) from error
    return rows


def _sync(folder: Path) -> None:
    """Flush the names of a folder's files to disk before anything relies on them."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MEASURE = "measure it again: autotailor profile … profile.remeasure=[failed]"
SNAPSHOT = "part-0.parquet"
NAMED_IN_ERRORS = 3


class Lut:
    """The entries of one device in one folder, one per operator.

    If an operator was measured by several methods, the first of `methods` that succeeded is used; with several settings, the
    latest entry. `tasks.measuring.lut.choice` chooses among several implementations.
    """

    def __init__(self, folder: Path, device: DeviceKey, methods: Sequence[ProfilingMethod] = METHODS) -> None:
        self.folder = folder
        self.device = device
        self.methods = tuple(methods)
        self.invalid: tuple[str, ...] = ()
        """Messages about entries that were left out."""
        self._others: set[DeviceKey] = set()
        self._entries: dict[str, dict[str, dict[str, Entry]]] = {}
        """Operator (digest) -> method -> implementation -> entry."""

    @classmethod
    def open(
        cls,
        folder: Path,
        device: DeviceKey | None = None,
        *,
        methods: Sequence[ProfilingMethod] = METHODS,
        settings: Collection[str] | None = None,
        leave_out_invalid: bool = False,
    ) -> Self:
        """Read all parts in `folder`; entries of other devices, methods and (unless None) settings are left out.

        Without `device` the folder must hold entries of exactly one device. UserError: a part cannot be read, the folder
        holds several devices, or a time is not a positive number. With `leave_out_invalid`, an entry without a positive
        time is left out.
        """
        rows = latest(read(folder)[1])
        devices = {device_of(row) for row in rows}
        if device is None:
            if len(devices) != 1:
                raise UserError(f"LUT '{folder}'", f"holds {len(devices)} devices", next_step="name one")
            (device,) = devices
        lut = cls(folder, device, methods)
        lut._others = devices - {device}
        wanted = [row for row in rows if device_of(row) == device and row["method"] in methods]
        complaints = []
        for row in wanted:
            if settings is None or row["settings"] in settings:
                try:
                    lut._take(entry_of(row))
                except ValueError as error:
                    complaints.append(str(error))
        if complaints and not leave_out_invalid:
            more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
            raise UserError(f"LUT '{folder}'", f"{complaints[0]}{more}", next_step=MEASURE)
        lut.invalid = tuple(complaints)
        return lut

    def _take(self, entry: Entry) -> None:
        known = self._entries.setdefault(entry.digest, {}).setdefault(entry.method, {})
        name = entry.implementation
        if name not in known or known[name].measured_at <= entry.measured_at:
            known[name] = entry

    def append(self, entries: Iterable[Entry]) -> None:
        """Write one more part; the part is on disk when the call returns. A later entry replaces an earlier entry."""
        new = {entry.key: entry for entry in entries}
        if not new:
            return
        write(self.folder, [row_of(self.device, entry) for entry in new.values()])
        for entry in new.values():
            self._take(entry)

    def snapshot(self, folder: Path, digests: Iterable[str]) -> "Lut":
        """Write a table of only these operators to a separate folder, as one part; equal entries make equal files.

        Every operator keeps its chosen entry (`get`) and the entries of its other implementations. If its energy is in another
        entry, this entry is kept, too.
        """
        found = ((*self.implementations(digest), self._metered(digest)) for digest in sorted(set(digests)))
        chosen = [entry for each in found for entry in dict.fromkeys(each) if entry is not None]
        write(folder, [row_of(self.device, entry) for entry in chosen], SNAPSHOT)
        return Lut.open(folder, self.device, methods=self.methods)

    def entries(self) -> tuple[Entry, ...]:
        """The entry of each operator."""
        return tuple(entry for digest in self._entries if (entry := self.get(digest)))

    def get(self, digest: str) -> Entry | None:
        """The chosen entry of an operator: of the first method that succeeded, else of the first method that failed."""
        inorder = self._in_order(digest)
        return next((entry for entry in inorder if entry.state != "failed"), inorder[0] if inorder else None)

    def of_method(self, digest: str, method: ProfilingMethod) -> Entry | None:
        """The entry of an operator by one method, with the chosen implementation."""
        found = list(self._entries.get(digest, {}).get(method, {}).values())
        return found[position_of_chosen([entry.timed for entry in found])] if found else None

    def implementations(self, digest: str) -> tuple[Entry, ...]:
        """The entries of all implementations of an operator by the chosen entry's method, in the order of their names."""
        counts = self.get(digest)
        found = {} if counts is None else self._entries[digest][counts.method]
        return tuple(found[name] for name in sorted(found))

    def chosen(self, digests: Iterable[str]) -> dict[str, str]:
        """Operator (digest) -> chosen implementation, for operators whose choice is not the runtime's own."""
        counting = ((digest, self.get(digest)) for digest in digests)
        return {digest: entry.implementation for digest, entry in counting if entry and entry.implementation}

    def _in_order(self, digest: str) -> list[Entry]:
        """The entries of an operator, one per method, in order of trust."""
        found = (self.of_method(digest, method) for method in self.methods)
        return [entry for entry in found if entry is not None]

    def energies_mj(self) -> dict[str, float]:
        """Operator (digest) -> energy of one run [mJ], for operators whose energy the device's sensors measured."""
        metered = ((digest, self._metered(digest)) for digest in self._entries)
        return {digest: entry.energy_mj for digest, entry in metered if entry is not None and entry.energy_mj}

    def _metered(self, digest: str) -> Entry | None:
        """The entry with an operator's energy, of the first method that has an energy."""
        return next((entry for entry in self._in_order(digest) if entry.energy_mj), None)

    def require(self, features: "Iterable[OperatorFeature]") -> None:
        """Raise UserError if an operator has no entry; it names the operators and the way to complete the table."""
        missing = [feature for feature in features if self.get(feature.digest) is None]
        if not missing:
            return
        where = f"LUT '{self.folder}'"
        if not self._entries and self._others:
            other = min(self._others, key=lambda device: device.name)
            pairs = zip(other.identity().items(), self.device.identity().values(), strict=True)
            differs = [f"{name} {value}, here {own}" for (name, value), own in pairs if value != own]
            next_step = "autotailor profile … with this device measures its operators"
            raise UserError(where, f"was measured on another device ({'; '.join(differs)})", next_step=next_step)
        names = [f"{feature.operator} {feature.digest}" for feature in missing[:NAMED_IN_ERRORS]]
        more = f" and {len(missing) - NAMED_IN_ERRORS} more" if len(missing) > NAMED_IN_ERRORS else ""
        got = f"has no entry for {', '.join(names)}{more}"
        raise UserError(
            where, got, next_step="autotailor profile … profile.remeasure=[failed] measures what is missing"
        )

    def summary(self) -> dict[str, Any]:
        """A summary for reports: counts by state, method and operator type, every failure by name, the median spread.

        methods, operators: entries by method and by type, most first. implementations: number of operators by chosen
        implementation, without the runtime's own choice.
        """
        entries = self.entries()
        ok = [entry for entry in entries if entry.state == "ok"]
        failed = [entry for entry in entries if entry.state == "failed"]
        spreads = sorted(entry.spread for entry in ok if entry.spread is not None)
        return {
            "device": asdict(self.device),
            "entries": len(entries),
            "ok": len(ok),
            "fused": sum(entry.state == "fused" for entry in entries),
            "failed": len(failed),
            "noisy": sum(entry.noisy for entry in ok),
            "with_energy": len(self.energies_mj()),
            "median_spread": spreads[len(spreads) // 2] if spreads else None,
            "methods": dict(Counter(entry.method for entry in entries).most_common()),
            "implementations": dict(Counter(entry.implementation for entry in entries if entry.implementation)),
            "operators": dict(Counter(entry.operator for entry in entries).most_common()),
            "failures": [
                {"operator": entry.operator, "digest": entry.digest, "reason": entry.reason} for entry in failed
            ],
        }


@dataclass(frozen=True, slots=True)
class LutStore:
    """The look-up tables of all devices below one folder."""

    root: Path

    def open(
        self,
        device: DeviceKey,
        *,
        methods: Sequence[ProfilingMethod] = METHODS,
        settings: Collection[str] | None = None,
    ) -> Lut:
        """The table of a device, to be filled; invalid entries are treated as absent."""
        folder = self.root / device.name
        return Lut.open(folder, device, methods=methods, settings=settings, leave_out_invalid=True)

    def mend(self, device: DeviceKey) -> Iterator[str]:
        """Quarantine the damaged parts of a device's table; yields one message for each."""
        return mend(self.root / device.name)

    def folders(self) -> tuple[Path, ...]:
        """Every folder with parts: the root itself (a stage's table is a store of one), then its sub-folders."""
        inner = [path for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return tuple(path for path in (self.root, *sorted(inner)) if any(path.glob(PARTS)))

    def rows(self) -> list[Row]:
        """The latest row of each device, operator, method, settings and implementation. UserError if there is no table."""
        folders = self.folders()
        if not folders:
            next_step = "autotailor profile … fills one; another is named with store=FOLDER"
            raise UserError(f"LUT store '{self.root}'", "holds no look-up table", next_step=next_step)
        return latest(row for folder in folders for row in read(folder)[1])

    def compact(self) -> Iterator[tuple[str, int, int]]:
        """Merge the parts of each folder into one; yields (folder name, parts before, remaining rows)."""
        for folder in self.folders():
            yield folder.name, *compact(folder)

    def merge(self, sources: Sequence["LutStore"]) -> dict[str, int]:
        """Append entries of `sources` that are new or later than this store's; returns the number added per device.

        UserError when a source holds no table or an invalid entry; then nothing is added.
        """
        found = [row for source in sources for row in source.valid_rows()]
        own = self.rows() if self.folders() else []
        known = {id(row) for row in own}
        news: dict[DeviceKey, list[Row]] = {}
        for row in latest([*own, *found]):
            if id(row) not in known:
                news.setdefault(device_of(row), []).append(row)
        for device, rows in news.items():
            write(self.root / device.name, rows)
        return {device.name: len(rows) for device, rows in news.items()}

    def valid_rows(self) -> list[Row]:
        """The checked `rows`. UserError names the first invalid row."""
        rows = self.rows()
        for row in rows:
            if text := complaint(row):
                next_step = "measure it again on its device: autotailor profile … profile.remeasure=[failed]"
                raise UserError(f"LUT store '{self.root}'", text, next_step=next_step)
        return rows

"""The look-up table (LUT): one entry for every unique operator on one device, in append-only Parquet parts.

A part is written whole or not at all; a killed run loses only what is not yet in a part. An entry is keyed by
(operator digest, backend, build, precision, threads, device fingerprint); see `DeviceKey`.
"""

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import pyarrow as pa
from pyarrow import parquet

from tasks.artifacts import write_bytes
from tasks.errors import UserError

State = Literal["ok", "failed"]
PART = "part-{:06d}.parquet"

_SCHEMA = pa.schema(
    [
        pa.field("digest", pa.string(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("feature", pa.string(), nullable=False),
        pa.field("backend", pa.string(), nullable=False),
        pa.field("build", pa.string(), nullable=False),
        pa.field("precision", pa.string(), nullable=False),
        pa.field("threads", pa.int32(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("p50_ms", pa.float64()),
        pa.field("p90_ms", pa.float64()),
        pa.field("spread", pa.float64()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("noisy", pa.bool_(), nullable=False),
        pa.field("measured_at", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKey:
    """What besides the operator decides a latency: entries of two keys are never mixed."""

    backend: str
    build: str
    precision: str
    threads: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator on one device. `state` "failed" has a reason and no times; `feature` is its JSON text.

    Times are milliseconds; `measured_at` is UTC in ISO 8601. ValueError when a time is not a positive number.
    """

    digest: str
    operator: str
    feature: str
    state: State
    n: int
    noisy: bool
    measured_at: str
    reason: str | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        where = f"LUT entry of {self.operator} {self.digest}"
        if self.state == "failed":
            if not self.reason or self.p50_ms is not None or self.p90_ms is not None:
                raise ValueError(f"{where}: a failed entry has a reason and no times")
        elif self.state == "ok":
            for name, value in (("p50_ms", self.p50_ms), ("p90_ms", self.p90_ms)):
                if value is None or not math.isfinite(value) or value <= 0:
                    raise ValueError(f"{where}: {name} = {value}; allowed: a number above 0")
        else:
            raise ValueError(f"{where}: state {self.state!r}; allowed: {', '.join(get_args(State))}")


class Lut:
    """The entries of one device in one folder."""

    def __init__(self, folder: Path, device: DeviceKey, entries: dict[str, Entry], next_part: int) -> None:
        self.folder = folder
        self.device = device
        self._entries = entries
        self._next_part = next_part

    @classmethod
    def open(cls, folder: Path, device: DeviceKey | None = None) -> Self:
        """Read all parts in `folder`; entries of other devices are left out.

        Without `device` the folder must hold exactly one. UserError: a part cannot be read, or which device.
        """
        rows: list[dict[str, Any]] = []
        parts = sorted(folder.glob("part-*.parquet"))
        for part in parts:
            rows += _read(part)
        devices = {_device_of(row) for row in rows}
        if device is None:
            if len(devices) != 1:
                raise UserError(f"LUT '{folder}'", f"holds {len(devices)} devices", next_step="name one")
            device = devices.pop()
        entries = {row["digest"]: _entry_of(row, folder) for row in rows if _device_of(row) == device}
        following = 1 + max((int(part.stem.removeprefix("part-")) for part in parts), default=-1)
        return cls(folder, device, entries, following)

    def append(self, entries: Iterable[Entry]) -> None:
        """Write one more part; it is on disk when this returns. A later entry replaces an earlier one."""
        new = {entry.digest: entry for entry in entries}
        if not new:
            return
        rows = [asdict(entry) | asdict(self.device) for entry in new.values()]
        stream = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self.folder / PART.format(self._next_part), stream.getvalue())
        self._next_part += 1
        self._entries |= new

    def entries(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple(self._entries.values())

    def get(self, digest: str) -> Entry | None:
        """The entry of an operator."""
        return self._entries.get(digest)

    def missing(self, digests: Iterable[str]) -> Iterator[str]:
        """Those without an entry; an operator that failed has one."""
        return (digest for digest in digests if digest not in self._entries)

    def summary(self) -> dict[str, Any]:
        """For reports: counts by state and operator type, every failure by name, the median spread."""
        ok = [entry for entry in self._entries.values() if entry.state == "ok"]
        failed = [entry for entry in self._entries.values() if entry.state == "failed"]
        spreads = sorted(entry.spread for entry in ok if entry.spread is not None)
        return {
            "device": asdict(self.device),
            "entries": len(self._entries),
            "ok": len(ok),
            "failed": len(failed),
            "noisy": sum(entry.noisy for entry in ok),
            "median_spread": spreads[len(spreads) // 2] if spreads else None,
            "operators": dict(Counter(entry.operator for entry in self._entries.values()).most_common()),
            "failures": [
                {"operator": entry.operator, "digest": entry.digest, "reason": entry.reason} for entry in failed
            ],
        }


def _read(part: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = parquet.read_table(part, schema=_SCHEMA, partitioning=None).to_pylist()
    except (OSError, pa.ArrowException) as error:
        next_step = "remove the file; its operators are then measured again"
        raise UserError(f"LUT part '{part}'", f"cannot be read ({error})", next_step=next_step) from error
    return rows


def _device_of(row: dict[str, Any]) -> DeviceKey:
    return DeviceKey(**{field.name: row[field.name] for field in fields(DeviceKey)})


def _entry_of(row: dict[str, Any], folder: Path) -> Entry:
    try:
        return Entry(**{field.name: row[field.name] for field in fields(Entry)})
    except ValueError as error:
        raise UserError(f"LUT '{folder}'", str(error), next_step="measure this operator again") from error


def feature_text(feature: dict[str, Any]) -> str:
    """The `feature` column: compact JSON."""
    return json.dumps(feature, sort_keys=True, separators=(",", ":"), allow_nan=False)

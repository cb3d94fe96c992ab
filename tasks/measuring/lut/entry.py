"""The records of a look-up table: a device and one operator measured on it; columns in Parquet, answers in JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import pyarrow as pa

from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.measuring.lut.choice import ProfilingMethod, TimedImplementation

State = Literal["ok", "fused", "failed"]
Cache = Literal["warm", "cold"]
Row = dict[str, Any]
METHODS: tuple[ProfilingMethod, ...] = ("in situ", "alone")
"""The methods in order of trust: times inside a network before times of single operators."""

SCHEMA = pa.schema(
    [
        pa.field("digest", pa.string(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("feature", pa.string(), nullable=False),
        pa.field("method", pa.string(), nullable=False),
        pa.field("settings", pa.string(), nullable=False),
        pa.field("implementation", pa.string(), nullable=False),
        pa.field("backend", pa.string(), nullable=False),
        pa.field("build", pa.string(), nullable=False),
        pa.field("precision", pa.string(), nullable=False),
        pa.field("threads", pa.int32(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field("description", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("p50_ms", pa.float64()),
        pa.field("p90_ms", pa.float64()),
        pa.field("spread", pa.float64()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("noisy", pa.bool_(), nullable=False),
        pa.field("cache", pa.string()),
        pa.field("cost_ms", pa.float64()),
        pa.field("energy_mj", pa.float64()),
        pa.field("measured_at", pa.string(), nullable=False),
    ]
)

ABSENT: dict[str, Any] = {
    "method": "alone",
    "settings": "",
    "implementation": "",
    "description": "",
    "cache": None,
    "cost_ms": None,
    "energy_mj": None,
}
"""Columns that were added later, with their values for older parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKey:
    """Everything besides the operator that determines a latency. Entries of two keys are never mixed.

    `description` (runtime, processor) is for people and does not distinguish devices.
    """

    backend: str
    build: str
    precision: str
    threads: int
    fingerprint: str
    description: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The device's folder in a store."""
        return f"{self.backend}-{self.precision}-{self.threads}t-{digest_of(self.identity())[:12]}"

    def identity(self) -> dict[str, Any]:
        """The fields that distinguish devices, as JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.compare}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operator on one device. `feature`: its JSON text. `state` "failed" has a reason and no times; "fused" has no times
    either: inside networks the device runs no layer for the operator, and its neighbours' times include it.

    Times are milliseconds; `n` counts samples; `spread` = (p90 - p10) / p50; `measured_at` is UTC in ISO 8601. `method`:
    "alone", as a separate model, or "in situ", inside whole SubNets. `settings`: settings of the measurement, as JSON text (""
    if unknown). `implementation`: one of the runtime's implementations, "" for the runtime's own choice. Entries of different
    methods, settings or implementations are kept apart. `cache`: state of the processor's caches, if it was controlled.
    `cost_ms`: time that profiling waited for the operator, if known; divided among identical devices. `energy_mj`: energy of
    one run, if the device's power sensors measured it; unknown is None, never 0. ValueError when a time or an energy is not a
    positive number.
    """

    digest: str
    operator: str
    feature: str
    state: State
    n: int
    noisy: bool
    measured_at: str
    method: ProfilingMethod = "alone"
    settings: str = ""
    implementation: str = ""
    reason: str | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    spread: float | None = None
    cache: Cache | None = None
    cost_ms: float | None = None
    energy_mj: float | None = None

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise ValueError(f"LUT entry of {self.operator} {self.digest}: {fault}")

    def _fault(self) -> str | None:
        """The first impossible value; None if there is none."""
        kinds = {"state": get_args(State), "method": get_args(ProfilingMethod), "cache": (None, *get_args(Cache))}
        for name, allowed in kinds.items():
            if getattr(self, name) not in allowed:
                return f"{name} {getattr(self, name)!r}; allowed: {', '.join(map(str, allowed))}"
        if not _is_utc(self.measured_at):
            return f"measured_at = {self.measured_at!r}; allowed: UTC in ISO 8601, ending in +00:00"
        if self.energy_mj is not None and self.state != "ok":
            return f"a {self.state} entry has no energy"
        if self.energy_mj is not None and not (math.isfinite(self.energy_mj) and self.energy_mj > 0):
            return f"energy_mj = {self.energy_mj}; allowed: a number above 0, or none where unknown"
        timed = self.p50_ms is not None or self.p90_ms is not None
        if self.state == "fused" and (self.method != "in situ" or timed):
            return "a fused entry is from inside networks and has no times"
        if self.state == "failed" and (not self.reason or timed):
            return "a failed entry has a reason and no times"
        for name, value in (("p50_ms", self.p50_ms), ("p90_ms", self.p90_ms)) if self.state == "ok" else ():
            if value is None or not math.isfinite(value) or value <= 0:
                return f"{name} = {value}; allowed: a number above 0"
        return None

    @property
    def latency_ms(self) -> float | None:
        """The operator's summand in a network's latency; None if its latency is unknown."""
        return 0.0 if self.state == "fused" else self.p50_ms

    @property
    def timed(self) -> TimedImplementation:
        """The entry's implementation with its latency, for the choice among implementations."""
        return TimedImplementation(self.implementation, self.latency_ms, self.spread or 0.0, self.n)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Operator, method, settings, implementation. A later entry of the device with an equal key replaces this one."""
        return self.digest, self.method, self.settings, self.implementation


def _is_utc(text: str) -> bool:
    """Whether a text is a UTC time ending in +00:00; with one spelling, texts sort like times."""
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0) and text.endswith("+00:00")
    except ValueError:
        return False


def now() -> str:
    """The `measured_at` of a new entry: the current time."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def json_text(value: Mapping[str, Any]) -> str:
    """The `feature` or the `settings` column: compact JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def row_of(device: DeviceKey, entry: Entry) -> Row:
    """The row of an entry, with all columns."""
    return {one.name: getattr(record, one.name) for record in (device, entry) for one in fields(record)}


def device_of(row: Row) -> DeviceKey:
    """The device of a row."""
    return DeviceKey(**{one.name: row[one.name] for one in fields(DeviceKey)})


def entry_of(row: Row) -> Entry:
    """The operator of a row. ValueError for impossible values."""
    return Entry(**{one.name: row[one.name] for one in fields(Entry)})


def complaint(row: Row) -> str | None:
    """The reason why a row is not a valid entry; None if it is valid."""
    try:
        entry_of(row)
    except ValueError as error:
        return str(error)
    return None


def as_schema(table: pa.Table, where: str) -> pa.Table:
    """A part with all current columns. UserError if it is no part, or was written by a later version."""
    unknown = [name for name in table.column_names if name not in SCHEMA.names]
    if unknown:
        raise UserError(where, f"has columns from a later version: {', '.join(unknown)}", next_step="update autotailor")
    missing = [name for name in SCHEMA.names if name not in table.column_names and name not in ABSENT]
    if missing:
        raise UserError(where, f"is no part of a look-up table (without {', '.join(missing)})")
    for name in SCHEMA.names:
        if name not in table.column_names:
            column = pa.array([ABSENT[name]] * len(table), SCHEMA.field(name).type)
            table = table.append_column(SCHEMA.field(name), column)
    return table.select(SCHEMA.names).cast(SCHEMA)

"""Entries of look-up tables for tests that measure nothing."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from tasks.measuring.lut import DeviceKey, Entry

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0", description="ncnn here")
EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


def entry(digest: str, **changes: Any) -> Entry:
    """A measured convolution."""
    values: dict[str, Any] = {"operator": "Conv", "feature": "{}", "state": "ok", "p50_ms": 0.5, "p90_ms": 0.6}
    return Entry(digest=digest, **(values | {"spread": 0.1, "n": 20, "noisy": False, "measured_at": EARLY} | changes))


def failed(digest: str, **changes: Any) -> Entry:
    """A convolution that has no latency."""
    values = {"state": "failed", "reason": "ncnn has no layer for 'aten::det'"}
    return entry(digest, **(values | {"p50_ms": None, "p90_ms": None, "spread": None} | changes))


def rewrite(part: Path, table: pa.Table) -> Path:
    """Put a table in the place of a part, as one that has no digest in its name."""
    part.unlink()
    plain = part.with_name("part-0.parquet")
    parquet.write_table(table, plain)
    return plain

"""Entries of look-up tables for tests that measure nothing."""

from typing import Any

from tasks.lut import DeviceKey, Entry

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0", description="ncnn here")
EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


def entry(digest: str, **changes: Any) -> Entry:
    """A measured convolution."""
    values = {"operator": "Conv", "feature": "{}", "state": "ok", "p50_ms": 0.5, "p90_ms": 0.6, "spread": 0.1}
    return Entry(digest=digest, **(values | {"n": 20, "noisy": False, "measured_at": EARLY} | changes))


def failed(digest: str, **changes: Any) -> Entry:
    """A convolution that has no latency."""
    values = {"state": "failed", "reason": "ncnn has no layer for 'aten::det'"}
    return entry(digest, **(values | {"p50_ms": None, "p90_ms": None, "spread": None} | changes))

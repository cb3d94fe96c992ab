"""Look-up tables (LUTs): latencies of operators on devices, in append-only Parquet parts that runs and networks share."""

from tasks.lut.entry import Cache, DeviceKey, Entry, ProfilingMethod, feature_text, now, settings_text
from tasks.lut.store import LutStore
from tasks.lut.table import Lut

__all__ = [
    "Cache",
    "DeviceKey",
    "Entry",
    "Lut",
    "LutStore",
    "ProfilingMethod",
    "feature_text",
    "now",
    "settings_text",
]

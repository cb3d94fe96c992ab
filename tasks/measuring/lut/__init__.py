"""Look-up tables (LUTs): latencies of operators on devices, in append-only Parquet parts that runs and networks share."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.measuring.lut.entry import DeviceKey, Entry, ProfilingMethod, json_text, now
    from tasks.measuring.lut.table import Lut, LutStore
else:
    __getattr__ = public_names(__name__, __file__)

"""Nights: the same run again and again, each compared with the one before, and their trends as a page.

Each night leaves one record. Its latencies are measured anew every night, in rounds, so that a changed device is detected
although no stage is run again.
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.operations.nightly.comparison import NightComparison, compare
    from tasks.operations.nightly.records import DeviceNight, Finding, History, Night, NightTimes, Settings, StageNight
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "DeviceNight",
    "Finding",
    "History",
    "Night",
    "NightComparison",
    "NightTimes",
    "Settings",
    "StageNight",
    "compare",
]

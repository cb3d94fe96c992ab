"""SubNets of a bundle that may be offloaded to several devices: rows of its table beside those on the coordinator.

[The choice at run time](docs/runtime_choice.md#rows-over-levels) says how they are chosen.
"""

from adaptive_runtime.offload.placed.expected import ExpectedPlacement, RunRatio
from adaptive_runtime.offload.placed.opened import PlacedSubNets
from adaptive_runtime.offload.placed.rows import PlacedRowsNow, PlacementRows
from adaptive_runtime.offload.placed.runtime import NetworkRuntime, PlacedRun, StandInTimes
from adaptive_runtime.offload.placed.subnets import PlacedSubNet, SharedDevices

__all__ = [
    "ExpectedPlacement",
    "NetworkRuntime",
    "PlacedRowsNow",
    "PlacedRun",
    "PlacedSubNet",
    "PlacedSubNets",
    "PlacementRows",
    "RunRatio",
    "SharedDevices",
    "StandInTimes",
]

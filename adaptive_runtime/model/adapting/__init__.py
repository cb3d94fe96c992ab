"""Adaptation of a deployed model: observes requests and the device's load, and decides which variant should serve.

[The run time](docs/runtime.md#adapting) shows how it is used.
"""

from adaptive_runtime.model.adapting.adaptation import Adaptation, AdaptingState, ServedRun, StandInRow
from adaptive_runtime.model.adapting.estimate import LoadEstimate
from adaptive_runtime.model.adapting.options import AdaptingOptions
from adaptive_runtime.model.adapting.over_devices import SubNetsOverDevices
from adaptive_runtime.model.adapting.record import DecisionRecord
from adaptive_runtime.model.adapting.variants import BundleVariants

__all__ = [
    "Adaptation",
    "AdaptingOptions",
    "AdaptingState",
    "BundleVariants",
    "DecisionRecord",
    "LoadEstimate",
    "ServedRun",
    "StandInRow",
    "SubNetsOverDevices",
]

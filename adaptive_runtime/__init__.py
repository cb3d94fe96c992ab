"""The run time on a device after deployment: chooses SubNets by tables, without torch and without the IR.

Names of this package are imported on first use: the pipeline shares its errors, and ranks of the pipeline need nothing
else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import importing  # before any library

if TYPE_CHECKING:
    from adaptive_runtime.base.weight_options import WeightOptions
    from adaptive_runtime.model.answers import ModelAnswer, ModelState
    from adaptive_runtime.model.deployed import DeployedModel
    from adaptive_runtime.model.opening import check, load
    from adaptive_runtime.model.options import AdaptingOptions
    from adaptive_runtime.model.stateful import StatefulNetwork

__all__ = [
    "AdaptingOptions",
    "DeployedModel",
    "ModelAnswer",
    "ModelState",
    "StatefulNetwork",
    "WeightOptions",
    "check",
    "load",
]

ROOMS = {
    "AdaptingOptions": "model.options",
    "DeployedModel": "model.deployed",
    "ModelAnswer": "model.answers",
    "ModelState": "model.answers",
    "StatefulNetwork": "model.stateful",
    "WeightOptions": "base.weight_options",
    "check": "model.opening",
    "load": "model.opening",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in ROOMS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = getattr(import_module(f"{__name__}.{ROOMS[name]}"), name)
    globals()[name] = found
    return found

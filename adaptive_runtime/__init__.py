"""The part that stays on a device after deployment: decides with tables, without torch and without the IR.

Names of this package are imported on first use: the pipeline shares its errors, and ranks of the pipeline need nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import importing  # noqa: F401  # before any library

if TYPE_CHECKING:
    from adaptive_runtime.model.adapting import AdaptingOptions
    from adaptive_runtime.model.deployed import DeployedModel, ModelAnswer, ModelState, check, load
    from adaptive_runtime.weights import WeightOptions

__all__ = ["AdaptingOptions", "DeployedModel", "ModelAnswer", "ModelState", "WeightOptions", "check", "load"]

ROOMS = {"AdaptingOptions": "adapting", "WeightOptions": "adapting_weights"}
"""The module of a name, if it is not `deployed`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = getattr(import_module(f"{__name__}.{ROOMS.get(name, 'deployed')}"), name)
    globals()[name] = found
    return found

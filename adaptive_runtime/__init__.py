"""The part that stays on a device after deployment: decides with tables, without torch and without the IR.

Names of this package are imported on first use: the pipeline shares its errors, and ranks of the pipeline need nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import importing  # noqa: F401  # before any library

if TYPE_CHECKING:
    from adaptive_runtime.base.weight_options import WeightOptions
    from adaptive_runtime.model.adapting import AdaptingOptions
    from adaptive_runtime.model.deployed import DeployedModel, ModelAnswer, ModelState, check, load

__all__ = ["AdaptingOptions", "DeployedModel", "ModelAnswer", "ModelState", "WeightOptions", "check", "load"]

ROOMS = {"AdaptingOptions": "model.adapting", "WeightOptions": "base.weight_options"}
"""The module of a name, if it is not `model.deployed`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = getattr(import_module(f"{__name__}.{ROOMS.get(name, 'model.deployed')}"), name)
    globals()[name] = found
    return found

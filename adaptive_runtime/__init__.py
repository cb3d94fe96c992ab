"""What stays on a device after deployment: decides with tables, without torch and without the IR."""

from adaptive_runtime.adapting import AdaptingOptions
from adaptive_runtime.adapting_weights import WeightOptions
from adaptive_runtime.deployed import DeployedModel, ModelAnswer, ModelState, check, load

__all__ = ["AdaptingOptions", "DeployedModel", "ModelAnswer", "ModelState", "WeightOptions", "check", "load"]

"""What stays on a device after deployment: decides with tables, without torch and without the IR."""

from adaptive_runtime.deployed import DeployedModel, ModelAnswer, ModelState, check, load

__all__ = ["DeployedModel", "ModelAnswer", "ModelState", "check", "load"]

"""What stays on a device after deployment: decides with tables, without torch and without the IR."""

from adaptive_runtime.deployed import Answer, DeployedModel, ModelState, load

__all__ = ["Answer", "DeployedModel", "ModelState", "load"]

"""A bundle that serves: answers in numpy, SubNets swapped between two requests.

[The run time](docs/runtime.md) shows its use.
"""

from adaptive_runtime.model.deployed.answers import ModelAnswer, ModelState
from adaptive_runtime.model.deployed.checking import check
from adaptive_runtime.model.deployed.model import Chooser, DeployedModel
from adaptive_runtime.model.deployed.opening import load

__all__ = ["Chooser", "DeployedModel", "ModelAnswer", "ModelState", "check", "load"]

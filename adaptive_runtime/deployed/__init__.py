"""A bundle that serves: answers in numpy, SubNets swapped between two requests.

[The run time](docs/runtime.md) shows how it is used.
"""

from adaptive_runtime.deployed.answers import Answer, ModelState
from adaptive_runtime.deployed.model import Chooser, DeployedModel
from adaptive_runtime.deployed.opening import load

__all__ = ["Answer", "Chooser", "DeployedModel", "ModelState", "load"]

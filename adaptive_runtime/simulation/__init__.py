"""Long runs in short time: the decisions of the run time on a simulated device, and what they were worth.

[The choice at run time](docs/runtime_choice.md#simulation) explains it with examples.
"""

from adaptive_runtime.simulation.comparison import PolicyRegret, best_static, clairvoyant, compare
from adaptive_runtime.simulation.outcomes import RequestEnds, SimulatedOutcome
from adaptive_runtime.simulation.requests import SimulatedRequests
from adaptive_runtime.simulation.server import Simulation

__all__ = [
    "PolicyRegret",
    "RequestEnds",
    "SimulatedOutcome",
    "SimulatedRequests",
    "Simulation",
    "best_static",
    "clairvoyant",
    "compare",
]

"""Long runs in short time: the decisions of the run time on a simulated device, and what they were worth.

[The choice at run time](docs/runtime_choice.md#simulation) explains it with examples.
"""

from adaptive_runtime.simulation.comparison import PolicyRegret, best_static, clairvoyant, compare
from adaptive_runtime.simulation.levels import Level, LevelRows, RowLevels
from adaptive_runtime.simulation.outcomes import RequestEnds, SimulatedOutcome
from adaptive_runtime.simulation.placed import PlacedRows
from adaptive_runtime.simulation.requests import SimulatedRequests
from adaptive_runtime.simulation.scenario_device import LinkHistory, ScenarioDevice
from adaptive_runtime.simulation.scored import PlayedScenario, ScoredSystem
from adaptive_runtime.simulation.server import SimulatedSurroundings, Simulation
from adaptive_runtime.simulation.shared import run_together

__all__ = [
    "Level",
    "LevelRows",
    "LinkHistory",
    "PlacedRows",
    "PlayedScenario",
    "PolicyRegret",
    "RequestEnds",
    "RowLevels",
    "ScenarioDevice",
    "ScoredSystem",
    "SimulatedOutcome",
    "SimulatedRequests",
    "SimulatedSurroundings",
    "Simulation",
    "best_static",
    "clairvoyant",
    "compare",
    "run_together",
]

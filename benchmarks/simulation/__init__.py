"""Long runs in short time: the decisions of the run time on a simulated device, and what they were worth.

[The choice at run time](docs/runtime_choice.md#simulation) explains it with examples.
"""

from benchmarks.simulation.comparison import PolicyRegret, best_static, clairvoyant, compare
from benchmarks.simulation.levels import Level, LevelRows, RowLevels
from benchmarks.simulation.outcomes import RequestEnds, SimulatedOutcome
from benchmarks.simulation.placed import PlacedRows
from benchmarks.simulation.requests import SimulatedRequests
from benchmarks.simulation.scenario_device import LinkHistory, ScenarioDevice
from benchmarks.simulation.scored import PlayedScenario, ScoredSystem
from benchmarks.simulation.server import SimulatedSurroundings, Simulation
from benchmarks.simulation.shared import run_together

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

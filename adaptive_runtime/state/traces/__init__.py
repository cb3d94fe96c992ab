"""Load of a device over time: recorded, generated, written, read, and reproduced by processes.

[The choice at run time](docs/runtime_choice.md#traces) explains it with examples.
"""

from adaptive_runtime.state.traces.generators import PATTERNS, Pattern, PressureResponse, square_wave, trace_of
from adaptive_runtime.state.traces.recorder import LoadRecorder
from adaptive_runtime.state.traces.scenario import PhaseDrift, PhaseLink, Scenario, ScenarioMoment, ScenarioPhase
from adaptive_runtime.state.traces.stress import PlayedTrace, Stress
from adaptive_runtime.state.traces.trace import LoadTrace

__all__ = [
    "PATTERNS",
    "LoadRecorder",
    "LoadTrace",
    "Pattern",
    "PhaseDrift",
    "PhaseLink",
    "PlayedTrace",
    "PressureResponse",
    "Scenario",
    "ScenarioMoment",
    "ScenarioPhase",
    "Stress",
    "square_wave",
    "trace_of",
]

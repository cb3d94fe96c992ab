"""Load of a device over time: recorded, generated, written, read, and reproduced by processes.

[The choice at run time](docs/runtime_choice.md#traces) explains it with examples.
"""

from adaptive_runtime.state.traces.scenario import (
    PhaseDrift,
    PhaseLink,
    PlayedTrace,
    Scenario,
    ScenarioMoment,
    ScenarioPhase,
    Stress,
)
from adaptive_runtime.state.traces.trace import (
    PATTERNS,
    LoadRecorder,
    LoadTrace,
    Pattern,
    PressureResponse,
    RequestArrivals,
    trace_of,
)

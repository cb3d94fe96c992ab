"""Load of a device over time: recorded, drawn, written, read, and made for real by processes.

[The choice at run time](docs/runtime_choice.md#traces) explains it with examples.
"""

from adaptive_runtime.traces.generators import PATTERNS, Pattern, PressureResponse, trace_of
from adaptive_runtime.traces.stress import Stress
from adaptive_runtime.traces.trace import LoadTrace

__all__ = ["PATTERNS", "LoadTrace", "Pattern", "PressureResponse", "Stress", "trace_of"]

"""Latencies under load: one slow-down factor for all variants, own factors if data show them, and the effect of load.

[Sensing](docs/runtime_sensing.md#slow-down) explains how.
"""

from adaptive_runtime.state.slowdown.common import CommonFactor, octaves_V
from adaptive_runtime.state.slowdown.expectation import LatencyExpectation
from adaptive_runtime.state.slowdown.factors import SlowDown
from adaptive_runtime.state.slowdown.own import OwnFactors
from adaptive_runtime.state.slowdown.response import LoadResponse

__all__ = ["CommonFactor", "LatencyExpectation", "LoadResponse", "OwnFactors", "SlowDown", "octaves_V"]

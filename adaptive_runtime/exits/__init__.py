"""Exits on the device: whether an answer is good enough to leave, which exit fits a budget, and the costs.

[Policies of exits](docs/exit_policies.md) explains the promise behind thresholds.
"""

from adaptive_runtime.exits.costs import (
    NO_EXIT,
    ExitChoice,
    ExitPrediction,
    ExitTable,
    best_within,
    exit_rates,
    exits_taken,
    predict,
    reach,
)
from adaptive_runtime.exits.decisions import (
    MEASURES,
    BatchDecision,
    ConfidenceMeasure,
    Decider,
    MeasureName,
    Promise,
    SampleDecision,
    Thresholds,
    trace,
)

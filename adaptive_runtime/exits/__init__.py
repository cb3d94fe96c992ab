"""Exits on the device: whether an answer is good enough to leave, which exit fits a budget, and the costs.

[Policies of exits](docs/exit_policies.md) explains the promise behind thresholds.
"""

from adaptive_runtime.exits.decider import BatchDecision, Decider, SampleDecision
from adaptive_runtime.exits.measures import MEASURES, ConfidenceMeasure, MeasureName, trace
from adaptive_runtime.exits.prediction import ExitPrediction, exit_rates, exits_taken, predict, reach
from adaptive_runtime.exits.resources import NO_EXIT, ExitChoice, ResourcePolicy, best_within
from adaptive_runtime.exits.tables import ExitTable
from adaptive_runtime.exits.thresholds import Promise, Thresholds

__all__ = [
    "MEASURES",
    "NO_EXIT",
    "BatchDecision",
    "ConfidenceMeasure",
    "Decider",
    "ExitChoice",
    "ExitPrediction",
    "ExitTable",
    "MeasureName",
    "Promise",
    "ResourcePolicy",
    "SampleDecision",
    "Thresholds",
    "best_within",
    "exit_rates",
    "exits_taken",
    "predict",
    "reach",
    "trace",
]

"""Scores of variants: accuracy against energy, latency and memory, by weights of the user or the battery."""

from adaptive_runtime.policy.scoring.battery import BatteryMu
from adaptive_runtime.policy.scoring.hierarchy import PairwisePreferences
from adaptive_runtime.policy.scoring.objective import BestScore, ScoredObjectives
from adaptive_runtime.policy.scoring.weights import (
    ACCURACY_FIRST,
    CRITERIA,
    ENERGY_FIRST,
    LATENCY_FIRST,
    Criterion,
    CriterionWeights,
)

__all__ = [
    "ACCURACY_FIRST",
    "CRITERIA",
    "ENERGY_FIRST",
    "LATENCY_FIRST",
    "BatteryMu",
    "BestScore",
    "Criterion",
    "CriterionWeights",
    "PairwisePreferences",
    "ScoredObjectives",
]

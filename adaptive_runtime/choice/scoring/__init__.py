"""Scores of variants: accuracy against energy, latency and memory, by weights of the user or the battery."""

from adaptive_runtime.choice.scoring.battery import BatteryMu
from adaptive_runtime.choice.scoring.hierarchy import PairwisePreferences
from adaptive_runtime.choice.scoring.objective import BestScore, ScoredObjectives
from adaptive_runtime.choice.scoring.weights import (
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

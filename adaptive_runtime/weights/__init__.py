"""Adapting weights: adaptation starts after detected drift and is kept only as long as it improves the answers.

[Weights that adapt](docs/adaptation.md) shows how it is used.
"""

from adaptive_runtime.base.weight_options import GuardSettings, WeightMethod, WeightOptions
from adaptive_runtime.base.weight_state import GuardEventKind, SubnetWeights, WeightEvent, WeightsState
from adaptive_runtime.weights.adaptation import WeightAdaptation
from adaptive_runtime.weights.aligning import DEVIATIONS, AlignedView, AlignmentDecision, ImageAlignment
from adaptive_runtime.weights.detection import DriftDetector
from adaptive_runtime.weights.guard import DriftGuard, GuardedWeights, GuardEvent
from adaptive_runtime.weights.judging import AdaptedVerdict, AnchorGap
from adaptive_runtime.weights.memory import BalancedMemory
from adaptive_runtime.weights.methods import load_method
from adaptive_runtime.weights.network import ObservedNetwork
from adaptive_runtime.weights.profile import UsualFeatures
from adaptive_runtime.weights.scales import LearnedScales, NormScales
from adaptive_runtime.weights.statistics import NormStatistics
from adaptive_runtime.weights.subnet import AdaptedSubnet
from adaptive_runtime.weights.weights import LabelledSource, StatisticsWeights

__all__ = [
    "DEVIATIONS",
    "AdaptedSubnet",
    "AdaptedVerdict",
    "AlignedView",
    "AlignmentDecision",
    "AnchorGap",
    "BalancedMemory",
    "DriftDetector",
    "DriftGuard",
    "GuardEvent",
    "GuardEventKind",
    "GuardSettings",
    "GuardedWeights",
    "ImageAlignment",
    "LabelledSource",
    "LearnedScales",
    "NormScales",
    "NormStatistics",
    "ObservedNetwork",
    "StatisticsWeights",
    "SubnetWeights",
    "UsualFeatures",
    "WeightAdaptation",
    "WeightEvent",
    "WeightMethod",
    "WeightOptions",
    "WeightsState",
    "load_method",
]

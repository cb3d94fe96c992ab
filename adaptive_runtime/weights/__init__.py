"""Adapting weights: adaptation starts after detected drift and is kept only as long as it improves the answers.

[Weights that adapt](docs/adaptation.md) shows how it is used.
"""

from adaptive_runtime.base.weight_options import (
    GuardEventKind,
    GuardSettings,
    SubnetWeights,
    WeightEvent,
    WeightMethod,
    WeightOptions,
    WeightsState,
)
from adaptive_runtime.weights.adaptation import AdaptedSubnet, WeightAdaptation, load_method
from adaptive_runtime.weights.aligning import DEVIATIONS, AlignedView, AlignmentDecision, ImageAlignment
from adaptive_runtime.weights.guard import (
    AdaptedVerdict,
    AnchorGap,
    BalancedMemory,
    DriftDetector,
    DriftGuard,
    GuardedWeights,
    GuardEvent,
)
from adaptive_runtime.weights.statistics import (
    LearnedScales,
    NormScales,
    NormStatistics,
    ObservedNetwork,
    UsualFeatures,
)
from adaptive_runtime.weights.weights import LabelledSource, StatisticsWeights

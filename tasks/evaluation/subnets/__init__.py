"""Accuracy of SubNets, each with its own BatchNorm statistics, computed from training images, never shared."""

from tasks.evaluation.subnets.images import (
    UPDATE_SECONDS,
    EvaluationData,
    EvaluationWorkers,
    FinishedSubNets,
    OtherPrecision,
)
from tasks.evaluation.subnets.lines import accuracies, accuracy_lines, known_accuracies
from tasks.evaluation.subnets.record import Accuracy
from tasks.evaluation.subnets.single import (
    accuracy,
    count_correct,
    evaluated,
    recalibrate_module,
    statistics_of,
    tallied,
)
from tasks.evaluation.subnets.together import MOST_TOGETHER, evaluate_together, pieces_of

__all__ = [
    "MOST_TOGETHER",
    "UPDATE_SECONDS",
    "Accuracy",
    "EvaluationData",
    "EvaluationWorkers",
    "FinishedSubNets",
    "OtherPrecision",
    "accuracies",
    "accuracy",
    "accuracy_lines",
    "count_correct",
    "evaluate_together",
    "evaluated",
    "known_accuracies",
    "pieces_of",
    "recalibrate_module",
    "statistics_of",
    "tallied",
]

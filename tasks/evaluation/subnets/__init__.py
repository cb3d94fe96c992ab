"""Accuracy of SubNets, each with its own BatchNorm statistics, computed from training images, never shared."""

from tasks.evaluation.subnets.evaluations import (
    MOST_TOGETHER,
    accuracies,
    accuracy,
    accuracy_lines,
    count_correct,
    evaluate_together,
    evaluated,
    known_accuracies,
    pieces_of,
    recalibrate_module,
    set_own_statistics,
    statistics_of,
    tallied,
)
from tasks.evaluation.subnets.images import (
    UPDATE_SECONDS,
    EvaluationData,
    EvaluationResources,
    EvaluationWorkers,
    FinishedSubNets,
    OtherPrecision,
)
from tasks.evaluation.subnets.record import Accuracy

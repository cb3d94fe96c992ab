"""Trainings: losses over steps, the accuracy of SubNets of all sizes meanwhile, and the results of a first training stage."""

from tasks.report.training.chart import figure
from tasks.report.training.first import ReportedPretraining, pretraining
from tasks.report.training.histories import histories
from tasks.report.training.ranges import ReportedRange, ReportedRanges, range_accuracies

__all__ = [
    "ReportedPretraining",
    "ReportedRange",
    "ReportedRanges",
    "figure",
    "histories",
    "pretraining",
    "range_accuracies",
]

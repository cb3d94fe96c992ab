"""Trainings: losses over steps, how good SubNets of all sizes were meanwhile, and what a first stage of two came to."""

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

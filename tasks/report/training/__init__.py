"""Trainings: losses over steps, and how good SubNets of all sizes were meanwhile."""

from tasks.report.training.chart import figure
from tasks.report.training.histories import histories
from tasks.report.training.ranges import ReportedRange, ReportedRanges, range_accuracies

__all__ = ["ReportedRange", "ReportedRanges", "figure", "histories", "range_accuracies"]

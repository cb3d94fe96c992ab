"""Confusion matrices of the base network and of a chosen winner of each device."""

from tasks.report.confusions.chart import figure
from tasks.report.confusions.found import ReportedConfusions, confusions

__all__ = ["ReportedConfusions", "confusions", "figure"]

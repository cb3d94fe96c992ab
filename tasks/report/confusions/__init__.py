"""Confusion matrices: which classes the base network and a chosen winner of each device take for which."""

from tasks.report.confusions.chart import figure
from tasks.report.confusions.found import ReportedConfusions, confusions

__all__ = ["ReportedConfusions", "confusions", "figure"]

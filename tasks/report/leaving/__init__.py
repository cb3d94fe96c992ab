"""Leaving early at exits: thresholds, promise, what they come to, and which images leave first and last."""

from tasks.report.leaving.chart import latencies, shares
from tasks.report.leaving.found import card, policies

__all__ = ["card", "latencies", "policies", "shares"]

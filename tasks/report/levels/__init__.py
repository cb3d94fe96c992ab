"""Levels of a device: SubNets, exits and formats in one table, and which combinations some state of it prefers."""

from tasks.report.levels.chart import figure
from tasks.report.levels.found import levels

__all__ = ["figure", "levels"]

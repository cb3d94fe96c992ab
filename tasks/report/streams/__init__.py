"""Streams that drift: the error of SubNets over time, under each method."""

from tasks.report.streams.chart import figure
from tasks.report.streams.found import card, streams

__all__ = ["card", "figure", "streams"]

"""Streams that drift: the error of SubNets over time, under each method."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.report.streams.chart import figure
    from tasks.report.streams.found import card, streams
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["card", "figure", "streams"]

"""Leaving early at exits: thresholds, promise, results, and the images that leave first and last."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.report.leaving.chart import latencies, shares
    from tasks.report.leaving.found import card, policies
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["card", "latencies", "policies", "shares"]

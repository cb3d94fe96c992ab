"""Refinement: the best candidates of every budget are evaluated and timed; measurements choose the winners."""

from tasks.refine.settings import Settings
from tasks.refine.stage import EVALUATED_FILE, MEASURED_FILE, choose, measure

__all__ = ["EVALUATED_FILE", "MEASURED_FILE", "Settings", "choose", "measure"]

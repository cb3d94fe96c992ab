"""Refinement: the best candidates of every budget are evaluated and timed; measurements choose the winners."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.winners import MEASURED_FILE
    from tasks.search.refine.known import EVALUATED_FILE
    from tasks.search.refine.stage import SearchedDevice, choose, measure
    from tasks.search.settings import RefineSettings as Settings
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["EVALUATED_FILE", "MEASURED_FILE", "SearchedDevice", "Settings", "choose", "measure"]

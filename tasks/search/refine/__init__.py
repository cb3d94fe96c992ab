"""Refinement: the best candidates of every budget are evaluated and timed; measurements choose the winners."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.candidates import MEASURED_FILE
    from tasks.search.refine.known import EVALUATED_FILE
    from tasks.search.refine.settings import Settings
    from tasks.search.refine.stage import SearchedDevice, measure
    from tasks.search.refine.winners import choose
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["EVALUATED_FILE", "MEASURED_FILE", "SearchedDevice", "Settings", "choose", "measure"]

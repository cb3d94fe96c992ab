"""Refinement: the best candidates of every budget are evaluated and timed; measurements choose the winners."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.refine.known import EVALUATED_FILE
    from tasks.refine.settings import Settings
    from tasks.refine.stage import SearchedDevice, measure
    from tasks.refine.winners import choose
    from tasks.schemas.candidates import MEASURED_FILE
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["EVALUATED_FILE", "MEASURED_FILE", "SearchedDevice", "Settings", "choose", "measure"]

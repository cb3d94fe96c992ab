"""Baselines: networks compared with a search's winners, evaluated and timed in the same way on the same images and devices."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.winners import BASELINES_FILE, COMPARED_FILE
    from tasks.search.baselines.stage import BaselineRequest, ComparisonRequest, choose, compare_on
    from tasks.search.baselines.subnets import Trained
    from tasks.search.settings import BaselineSettings as Settings
    from tasks.search.settings import Sibling
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "BASELINES_FILE",
    "COMPARED_FILE",
    "BaselineRequest",
    "ComparisonRequest",
    "Settings",
    "Sibling",
    "Trained",
    "choose",
    "compare_on",
]

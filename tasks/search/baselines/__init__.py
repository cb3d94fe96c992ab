"""Baselines: networks compared with a search's winners, evaluated and timed in the same way on the same images and devices."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.baselines import BASELINES_FILE, COMPARED_FILE
    from tasks.search.baselines.networks import Trained
    from tasks.search.baselines.settings import Settings, Sibling
    from tasks.search.baselines.stage import choose, compare_on
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["BASELINES_FILE", "COMPARED_FILE", "Settings", "Sibling", "Trained", "choose", "compare_on"]

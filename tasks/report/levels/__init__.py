"""Levels of a device: SubNets, exits and formats in one table, and the combinations that some state of it prefers."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.report.levels.chart import figure
    from tasks.report.levels.found import levels
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["figure", "levels"]

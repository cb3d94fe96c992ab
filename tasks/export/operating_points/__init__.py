"""Stage "front": one table of a device's levels: SubNet, exit, format (runtime and precision), and other devices."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.winners import LEVELS_FILE, LevelRow, Levels
    from tasks.export.operating_points.stage import FurtherDevices, LevelDevice, latency_error_of, run
else:
    __getattr__ = public_names(__name__, __file__)

"""Stage "front": one table of a device's levels: SubNet, exit, format (runtime and precision), and other devices."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.operating_points import LEVELS_FILE, LevelRow, Levels
    from tasks.export.operating_points.devices import LevelDevice, latency_error_of
    from tasks.export.operating_points.stage import FurtherDevices, run
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["LEVELS_FILE", "FurtherDevices", "LevelDevice", "LevelRow", "Levels", "latency_error_of", "run"]

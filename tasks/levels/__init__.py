"""Stage "front": one table of a device's levels: SubNet, exit, format (runtime and precision), and other devices."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.levels.devices import LevelDevice, latency_error_of
    from tasks.levels.placed import OtherDevices
    from tasks.levels.rows import LEVELS_FILE, LevelRow, Levels
    from tasks.levels.stage import run
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["LEVELS_FILE", "LevelDevice", "LevelRow", "Levels", "OtherDevices", "latency_error_of", "run"]

"""Stage "front": the levels of one device as one table: SubNet, exit, and format with its runtime and precision."""

from tasks.levels.devices import LevelDevice
from tasks.levels.rows import LEVELS_FILE, LevelRow, Levels
from tasks.levels.stage import run

__all__ = ["LEVELS_FILE", "LevelDevice", "LevelRow", "Levels", "run"]

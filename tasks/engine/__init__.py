"""The engine of a device: options of its runtime for whole networks, each kept where it is measured to be faster."""

from tasks.engine.chosen import ENGINE_FILE
from tasks.engine.settings import Settings
from tasks.engine.stage import run

__all__ = ["ENGINE_FILE", "Settings", "run"]

"""The engine of a device: its runtime's options for whole networks, each kept if it is measured to be faster."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.engine.chosen import ENGINE_FILE
    from tasks.engine.settings import Settings
    from tasks.engine.stage import run
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["ENGINE_FILE", "Settings", "run"]

"""The engine of a device: its runtime's options for whole networks, each kept if it is measured to be faster."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.measuring.runtime_options.settings import ENGINE_FILE, Settings
    from tasks.measuring.runtime_options.stage import run
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["ENGINE_FILE", "Settings", "run"]

"""Deployment: a bundle and the run time onto a device, over ssh or into a folder of this machine.

Each release has a folder of its own; a link says which one serves. `tasks.deploy.device_side` is what runs on the device.
"""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.deploy.deployment import Deployed, run
    from tasks.deploy.settings import Settings
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["Deployed", "Settings", "run"]

"""Deployment: a bundle and the run time onto a device, over ssh or into a folder of this machine.

Each release has a folder of its own; a link says which one serves. `tasks.deploy.device_side` is what runs on the device.
"""

from tasks.deploy.deployment import Deployed, run
from tasks.deploy.settings import Settings

__all__ = ["Deployed", "Settings", "run"]

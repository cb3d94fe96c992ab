"""Deployment: installs a bundle and the run time on a device, over ssh or in a folder of this machine.

Each release has its own folder; a link points to the release that serves. `tasks.deploy.device_side` runs on the device.
"""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.deploy.deployment import Deployed, run
    from tasks.deploy.settings import Settings
else:
    __getattr__ = public_names(__name__, __file__)

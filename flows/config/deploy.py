"""The config of a deployment."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from flows.config.bundles import bundle_of
from flows.config.device import DeviceName, DeviceProfile
from flows.storage.address import OutputPlace
from profiling_agents.client.ssh import SshTarget
from tasks.deploy import Settings


class DeployConfig(BaseModel):
    """Devices, of which the command names one, and what goes there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: dict[DeviceName, DeviceProfile]
    deploy: Settings = Settings()
    output_dir: OutputPlace = Path("outputs")

    @model_validator(mode="after")
    def _devices_take_software(self) -> Self:
        for name, profile in self.device.items():
            if profile.urls or profile.backend == "ncnn-adb":
                way = "an agent's address" if profile.urls else "adb"
                allowed = "a device with ssh, or this machine"
                raise ValueError(f"device.{name}: nothing can be installed through {way}; allowed: {allowed}")
        return self

    def target_of(self, device: str) -> SshTarget | None:
        """Where ssh connects to; None: this machine."""
        ssh = self.device[device].ssh
        return None if ssh is None else ssh.target()

    def bundle_of(self, device: str) -> Path:
        """The folder of the bundle. UserError: it is not there."""
        return bundle_of(self.output_dir, device, self.deploy.bundle, "deploy.bundle")

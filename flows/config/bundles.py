"""Bundles of the latest run, and the configs of a bundle under stress and of a deployment."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from adaptive_runtime.bundle.bundles import BUNDLE_FILE
from flows.config.devices import DeviceName, DeviceProfile
from flows.storage import EXPORTS_FOLDER, OutputPlace
from flows.storage.mirror import exports_here
from profiling_agents.client.ssh import SshTarget
from tasks.base.errors import UserError
from tasks.deploy import Settings
from tasks.deploy.stress import Settings as StressSettings
from tasks.export.bundles import BUNDLE_FOLDER


class StressConfig(BaseModel):
    """The run whose bundle is served, and how it is stressed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stress: StressSettings = StressSettings()
    output_dir: OutputPlace = Path("outputs")


def bundle_of(output_dir: Path | str, device: str, given: Path | None, option: str) -> Path:
    """The folder of a device's bundle, or the one that was given; it comes from a URL. UserError: it is not there."""
    found = given or exports_here(output_dir, device) / EXPORTS_FOLDER / device / BUNDLE_FOLDER
    if not (found / BUNDLE_FILE).is_file():
        hint = f"the run writes it with export.bundle=true: autotailor export export.bundle=true …; or {option}=FOLDER"
        raise UserError(f"bundle '{found}'", "is not there", next_step=hint)
    return found


def devices_with_bundles(output_dir: Path) -> list[str]:
    """The devices whose bundles the latest run has written."""
    files = sorted((output_dir / EXPORTS_FOLDER).glob(f"*/{BUNDLE_FOLDER}/{BUNDLE_FILE}"))
    return [file.parent.parent.name for file in files]


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
        """The machine that ssh connects to; None: this machine."""
        ssh = self.device[device].ssh
        return None if ssh is None else ssh.target()

    def bundle_of(self, device: str) -> Path:
        """The folder of the bundle. UserError: it is not there."""
        return bundle_of(self.output_dir, device, self.deploy.bundle, "deploy.bundle")

"""The config of a bundle under stress."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flows.storage.address import OutputPlace
from tasks.deploy.stress import Settings


class StressConfig(BaseModel):
    """The run whose bundle is served, and how it is stressed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stress: Settings = Settings()
    output_dir: OutputPlace = Path("outputs")

"""The config of a fleet's registry."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from tasks.operations.fleet.profiling.settings import FleetProfileSettings
from tasks.operations.fleet.rollout import MEASURES, RolloutSettings

RelayUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+/?$")]


class FleetConfig(BaseModel):
    """The location of the registry, how it is served, and the inputs of its actions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: str = "sqlite:///fleet/fleet.db"
    files: Path = Path("fleet/files")
    window_s: float = Field(default=3600.0, gt=0, le=7 * 86400)
    host: str = "127.0.0.1"
    port: int = Field(default=8763, ge=0, le=65535)
    relay_port: int = Field(default=8764, ge=0, le=65535)
    max_model_mib: int = Field(default=512, ge=1)
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    insecure_bind: bool = False
    count: int = Field(default=1, ge=1, le=10_000)
    to: Path | None = None
    owner: str = Field(default="", max_length=256)
    valid_hours: float = Field(default=24.0, gt=0, le=24 * 366)
    name: str = Field(default="", max_length=256)
    key_file: Path | None = None
    relay: RelayUrl | None = None
    ca_file: Path | None = None
    store: Path = Path("outputs/luts")
    profile: FleetProfileSettings = FleetProfileSettings()
    kinds: tuple[str, ...] = ()
    rollout: RolloutSettings = RolloutSettings()

    @field_validator("rollout", mode="before")
    @classmethod
    def _without_left_out_measures(cls, given: object) -> object:
        """Leave out measures that are null, since these have no limits."""
        if isinstance(given, dict) and isinstance(given.get("limits"), dict):
            limits = {name: one for name, one in given["limits"].items() if one is not None or name not in MEASURES}
            return {**given, "limits": limits}
        return given

"""Settings of a deployment, and of a bundle under stress."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.state.traces import Scenario, ScenarioPhase, Stress

PER_CORE = 1
"""Computing processes per core: a request that takes longer than a slice of time has half of its core left."""
PHASES = (("calm", 0.0), ("stress", 1.0), ("calm again", 0.0))
"""Phases, with the share of their time in which other processes work."""


class StressSettings(BaseModel):
    """The bundle, the budget and rate of its requests, and the load of other processes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: Path | None = Field(default=None, description="null: that of the latest run for the device")
    format: BundleFormat | None = Field(
        default=None, description="null: all formats that the bundle's device was measured in, whose runtime is here"
    )
    budget_ms: float | None = Field(default=None, gt=0, description="null: by slack")
    slack: float = Field(default=1.3, gt=0, description="budget over the most accurate SubNet's latency in calm")
    seconds: float = Field(default=21.0, gt=0, le=3600, description="a third each of calm, stress, and calm again")
    requests_per_s: float = Field(default=5.0, gt=0, le=1000)
    images: int = Field(default=64, ge=1, le=256, description="of a request, as a short video has them")
    cpu_processes: int | None = Field(
        default=None, ge=0, le=1024, description=f"that compute; null: {PER_CORE} per core"
    )
    bandwidth_processes: int = Field(default=0, ge=0, le=1024, description="that stream through memory")
    cache_processes: int = Field(default=0, ge=0, le=1024, description="that walk through the last cache")
    memory_processes: int = Field(default=0, ge=0, le=64, description="that hold memory; a fifth of it stays available")
    trace: Path | None = Field(default=None, description="a recorded load and its requests, in place of the phases")
    ready_s: float = Field(default=60.0, gt=0, le=3600, description="time for a service to become ready")

    @property
    def computing(self) -> int:
        """Processes that compute."""
        return PER_CORE * len(os.sched_getaffinity(0)) if self.cpu_processes is None else self.cpu_processes

    @property
    def processes(self) -> Stress:
        """The other processes."""
        return Stress(
            cpu_processes=self.computing,
            bandwidth_processes=self.bandwidth_processes,
            cache_processes=self.cache_processes,
            memory_processes=self.memory_processes,
        )

    @property
    def scenario(self) -> Scenario:
        """The environment of the services if there is no trace."""
        lasts_s, rate = self.seconds / len(PHASES), self.requests_per_s
        phases = tuple(
            ScenarioPhase(
                name=name,
                lasts_s=lasts_s,
                requests_per_s=rate,
                cpu=share,
                bandwidth=share,
                cache=share,
                memory=(1 - share, 1 - share),
            )
            for name, share in PHASES
        )
        return Scenario(origin="autotailor stress", memory_total_mib=1.0, phases=phases)


def _there(path: str) -> str:
    if not path.startswith(("/", "~/")) or "\n" in path:
        raise ValueError(f"'{path}'; allowed: an absolute path on the device, or one below ~/")
    return path


PlaceThere = Annotated[str, AfterValidator(_there)]
"""A path on the device: absolute, or below the user's home directory there."""
TCP_ONLY = ("host", "token_file", "tls_cert", "tls_key")
"""Settings without a meaning where the service has no port."""


class Settings(BaseModel):
    """Settings of a deployment: its files, their installation on the device, and the service."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bundle: Path | None = Field(default=None, description="null: that of the latest run for the device")
    format: BundleFormat | None = Field(
        default=None, description="null: all formats that the bundle's device was measured in, whose runtime is there"
    )
    wheel: Path | None = Field(default=None, description="wheel of the run time; null: built here")
    wheels: Path | None = Field(
        default=None, description="folder of wheels that are installed without a network; null: from the registry"
    )
    install: Literal["venv", "unpack"] = Field(
        default="venv", description="unpack: the run time alone, for a Python that has the libraries already"
    )
    python: str | None = Field(default=None, min_length=1, description="interpreter there; null: that of the device")
    folder: PlaceThere = Field(default="~/autotailor", description="on the device")
    start: bool = Field(default=True, description="false: installed and checked, not started")
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int | None = Field(
        default=8080,
        ge=0,
        le=65535,
        description="0: a free one; null: none, the service answers by deploy.socket alone",
    )
    token_file: PlaceThere | None = Field(default=None, description="on the device; null: made there, FOLDER/token")
    tls_cert: PlaceThere | None = Field(default=None, description="on the device")
    tls_key: PlaceThere | None = Field(default=None, description="on the device")
    socket: PlaceThere | None = Field(
        default=None, description="on the device: a Unix socket for programs of the same user there; null: none"
    )
    key_file: PlaceThere | None = Field(
        default=None, description="on the device: secret that the bundle is signed with"
    )
    budget_ms: float | None = Field(default=None, gt=0)
    memory_mib: float | None = Field(default=None, gt=0)
    options: tuple[str, ...] = Field(default=(), description="further words of autotailor-runtime serve")
    ready_s: float = Field(
        default=60.0, gt=0, le=3600, description="time to become ready, else the former release is back"
    )
    keep: int = Field(default=2, ge=1, description="releases that stay there, with the one that serves")

    @model_validator(mode="after")
    def _answers(self) -> Self:
        """Refuse a service that nobody reaches, and settings of a port without one."""
        if self.port is None:
            if self.socket is None:
                raise ValueError("port: null; give deploy.socket, or a port")
            fields = Settings.model_fields
            if given := [name for name in TCP_ONLY if getattr(self, name) != fields[name].default]:
                raise ValueError(f"{given[0]}: needs a port; give one, or leave it out")
        return self

    def serve_words(self, root: str) -> list[str]:
        """The arguments of `autotailor-runtime serve` after the bundle. root: the deployment's folder on the device."""
        tcp = self.port is not None
        given = {
            "--host": self.host if tcp else None,
            "--port": self.port,
            "--token-file": (self.token_file or f"{root}/token") if tcp else None,
            "--state": f"{root}/state",
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--socket": self.socket,
            "--budget-ms": self.budget_ms,
            "--memory-mib": self.memory_mib,
        }
        words = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
        return [*words, *self.check_words(), *self.options]

    def check_words(self) -> list[str]:
        """The arguments of `autotailor-runtime check` after the bundle."""
        given = {"--format": self.format, "--key-file": self.key_file}
        return [word for flag, value in given.items() if value is not None for word in (flag, value)]

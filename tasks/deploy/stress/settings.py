"""Settings of a bundle under stress."""

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.state.traces import Scenario, ScenarioPhase, Stress

PER_CORE = 1
"""Computing processes per core: a request that takes longer than a slice of time has half of its core left."""
PHASES = (("calm", 0.0), ("stress", 1.0), ("calm again", 0.0))
"""Phases, with the share of their time in which other processes work."""


class Settings(BaseModel):
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

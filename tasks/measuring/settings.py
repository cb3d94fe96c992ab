"""Settings for timing SubNets, and for comparing their outputs."""

from pydantic import BaseModel, ConfigDict, Field

from profiling_agents.messages import MeasureSettings, Precision
from tasks.conversion import ConversionLimits

HANDLING_MS = 15.0
"""Upload, loading and answering of one model; measured on loopback, two busy cores: 10 to 30 ms."""


class TimingSettings(BaseModel):
    """Settings for timing a whole SubNet once on a device, and limits of its conversion for the device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: MeasureSettings = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
    # Both count in the key, unlike those of operators (`tasks.profile.Settings`): a SubNet that a limit made fail stays in the
    # stage's result as a failure, and no setting measures failed SubNets again.
    conversion_wall_s: float = Field(120.0, gt=0)
    conversion_memory_mib: int = Field(8192, ge=512)

    @property
    def limits(self) -> ConversionLimits:
        """The limits of one conversion."""
        return ConversionLimits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)


class RepeatedTimingSettings(TimingSettings):
    """Settings for timing a whole SubNet on a device several times."""

    rounds: int = Field(2, ge=1, le=100, description="times that each SubNet is measured at least")

    def device_s(self, subnets: int) -> float:
        """The time [s] for which a calm device is busy with so many SubNets; up to twice as long where rounds differ."""
        once = HANDLING_MS + self.measure.warmup_ms + self.measure.time_cap_ms + self.measure.energy_ms
        return 1e-3 * subnets * self.rounds * once


class Tolerance(BaseModel):
    """Largest difference over the largest torch output, by the precision that the runtime computes in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fp32: float = Field(1e-4, gt=0)
    bf16: float = Field(2e-2, gt=0)
    fp16: float = Field(2e-2, gt=0)
    int8: float = Field(0.25, gt=0, description="to onnxruntime here, not to torch: runtimes round at other places")

    def of(self, precision: Precision) -> float:
        """The tolerance of one precision."""
        name = "fp16" if precision == "fp16_storage" else precision
        return float(getattr(self, name))

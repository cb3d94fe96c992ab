"""Settings of the export stage."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from profiling_agents.messages import MeasureSettings, Precision
from tasks.convert import Limits

FileFormat = Literal["onnx", "ncnn", "ncnn_fp16", "torch"]


class Tolerance(BaseModel):
    """Largest difference over the largest torch output, by the precision that the runtime computes in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fp32: float = Field(1e-4, gt=0)
    bf16: float = Field(2e-2, gt=0)
    fp16: float = Field(2e-2, gt=0)

    def of(self, precision: Precision) -> float:
        """The tolerance of one precision."""
        return {"fp32": self.fp32, "bf16": self.bf16, "fp16": self.fp16, "fp16_storage": self.fp16}[precision]


class Settings(BaseModel):
    """Which files are exported, and how they are checked and measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    formats: tuple[FileFormat, ...] = Field(
        ("onnx", "ncnn"), min_length=1, description="ncnn_fp16: weights in half the bytes; torch: an archive (.pt2)"
    )
    dynamic_batch: bool = Field(False, description="ONNX files and torch archives take any number of samples")
    bundle: bool = Field(
        False, description="all SubNets of a device in one folder, whose common weights are there once"
    )
    check_images: int = Field(4, ge=1, le=1000)
    tolerance: Tolerance = Tolerance()
    measure: MeasureSettings = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
    conversion_wall_s: float = Field(120.0, gt=0)
    conversion_memory_mib: int = Field(8192, ge=512)

    @field_validator("formats")
    @classmethod
    def _each_once(cls, formats: tuple[FileFormat, ...]) -> tuple[FileFormat, ...]:
        if len(set(formats)) != len(formats):
            raise ValueError(f"[{','.join(formats)}]: one is there twice")
        return formats

    @property
    def limits(self) -> Limits:
        """What one conversion may use."""
        return Limits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)

"""Settings of the predict stage."""

from pydantic import BaseModel, ConfigDict, Field

from profiling_agents.messages import MeasureSettings


class Settings(BaseModel):
    """Both predictors are checked on the largest, the smallest and `random_subnets` random SubNets.

    The latency correction is fitted on the largest, the smallest and the first `fit_subnets` random ones; the
    others are held out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    random_subnets: int = Field(20, ge=4)
    fit_subnets: int = Field(6, ge=0)
    rounds: int = Field(1, ge=1, le=100, description="times that each SubNet is measured at least")
    seed: int = Field(0, ge=0)
    validation_images: int | None = Field(None, ge=1, description="null: all of the validation split")
    recalibration_images: int = Field(256, ge=2, description="training images for BatchNorm statistics")
    interactions: int = Field(0, ge=0, description="evaluations of pairs of modifications, at most")
    features_mib: float = Field(1024.0, ge=0, description="memory for what SubNets evaluated together have in common")
    measure: MeasureSettings = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
    conversion_wall_s: float = Field(120.0, gt=0)
    conversion_memory_mib: int = Field(8192, ge=512)

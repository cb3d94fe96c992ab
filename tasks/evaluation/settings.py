"""Settings for evaluating SubNets, and settings of the quantisation."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tasks.base.artifacts import OutsideKey


class Settings(BaseModel):
    """Allowed loss of accuracy by int8, and the range of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_loss_points: float = Field(
        1.0, ge=0, le=100, description="accuracy that a file may lose; layers stay in fp32 until it loses no more"
    )
    reduce_range: bool = Field(
        False, description="weights in 7 bits, for x86 processors without VNNI, whose sums of 8-bit products saturate"
    )


class EvaluationSettings(BaseModel):
    """The images for evaluating SubNets (for predictors, candidates and baselines), and those for BatchNorm statistics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    validation_images: int | None = Field(None, ge=1, description="null: all of the validation split")
    recalibration_images: int = Field(256, ge=2, description="training images for BatchNorm statistics")
    features_mib: Annotated[float, OutsideKey("how much is computed once for several SubNets")] = Field(
        1024.0, ge=0, description="memory for what SubNets evaluated together have in common"
    )

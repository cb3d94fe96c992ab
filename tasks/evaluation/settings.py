"""Settings for evaluating SubNets."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tasks.base.artifacts import OutsideKey


class EvaluationSettings(BaseModel):
    """The images for evaluating SubNets (for predictors, candidates and baselines), and those for BatchNorm statistics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    validation_images: int | None = Field(None, ge=1, description="null: all of the validation split")
    recalibration_images: int = Field(256, ge=2, description="training images for BatchNorm statistics")
    features_mib: Annotated[float, OutsideKey("how much is computed once for several SubNets")] = Field(
        1024.0, ge=0, description="memory for what SubNets evaluated together have in common"
    )

"""Settings of the quantisation."""

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Allowed loss of accuracy by int8, and the range of its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_loss_points: float = Field(
        1.0, ge=0, le=100, description="accuracy that a file may lose; layers stay in fp32 until it loses no more"
    )
    reduce_range: bool = Field(
        False, description="weights in 7 bits, for x86 processors without VNNI, whose sums of 8-bit products saturate"
    )

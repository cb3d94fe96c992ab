"""Settings of the report stage."""

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The headline's question: how fast is the fastest SubNet that loses at most this much accuracy?"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy_points: float = Field(
        3.0, ge=0, le=100, description="largest loss of test accuracy against the base model"
    )

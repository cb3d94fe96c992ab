"""Settings of the refinement."""

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The number of SubNets that are measured for each budget, and the share of a budget that a winner leaves free.

    The SubNets are evaluated and timed with the settings of the predict stage: its images, `measure` and `rounds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: int = Field(3, ge=1, le=1000, description="SubNets that are measured for each budget; 1: none")
    rounds: int = Field(12, ge=1, le=1000, description="at most; each measures a part of the candidates and learns")
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="of a budget, left free: what one measurement differs by from the next"
    )

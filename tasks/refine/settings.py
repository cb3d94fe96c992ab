"""Settings of the refinement."""

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """How many SubNets are measured for each budget, and what a winner leaves free of it.

    They are evaluated and timed as the predict stage does it: its images, `measure` and `rounds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: int = Field(1, ge=1, le=1000, description="SubNets that are measured for each budget; 1: none")
    rounds: int = Field(12, ge=1, le=1000, description="at most; each measures a part of the candidates and learns")
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="of a budget, left free: what one measurement differs by from the next"
    )

"""Settings of the search stage."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Budget = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """How the best SubNet within a budget is found.

    exact: over the complete space, within `tolerance` of the budget (`tasks.search.exact`). genetic: as in OFA (ICLR 2020,
    §3.4 and its released evolution finder), started from a beam; the settings from `population` on are its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["genetic", "exact"] = "genetic"
    tolerance: float = Field(1e-3, ge=0, lt=0.1, description="of the budget, that the exact search may miss")
    budgets_ms: tuple[Budget, ...] | None = Field(
        None,
        min_length=1,
        description="latency budgets; null: `budget_count` from the fastest SubNet to the best",
    )
    budget_count: int = Field(12, ge=10, le=1000)
    population: int = Field(100, ge=4)
    parent_share: float = Field(0.25, gt=0, le=0.5)
    mutation_share: float = Field(0.5, ge=0, le=1, description="children made by mutation; the rest by crossover")
    mutation_probability: float = Field(0.1, gt=0, le=1, description="per variable of a mutated child")
    generations: int = Field(200, ge=1)
    plateau: int = Field(25, ge=1, description="stop after this many generations without improvement")
    beam_width: int = Field(16, ge=1)
    seed: int = Field(0, ge=0)

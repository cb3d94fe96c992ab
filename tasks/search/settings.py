"""Settings of the search stage."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Budget = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Limits(BaseModel):
    """What every winner keeps besides its latency budget, as predicted; null: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    energy_mj: Budget | None = Field(None, description="of one sample")
    memory_mib: Budget | None = Field(None, description="parameters and the peak of the activations")
    parameters: Budget | None = None
    macs: Budget | None = Field(None, description="multiply-accumulates of one sample")

    @property
    def given(self) -> dict[str, float]:
        """Those that are not null."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Settings(BaseModel):
    """How the best SubNet within a budget is found.

    exact: over the complete space, within `tolerance` of the budget (`tasks.search.exact`); of one device without limits it
    lists the whole front, too (`tasks.search.whole`). genetic: as in OFA (ICLR 2020, §3.4 and its released evolution finder),
    started from a beam; the settings from `population` on are its own. nsga2: one run of NSGA-II for all budgets, with these
    settings but `parent_share`, `populations` and `rebalance`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["genetic", "exact", "nsga2"] = "genetic"
    accuracy: Literal["predicted", "measured"] = Field(
        "predicted", description="measured: the genetic search evaluates the SubNets of its populations"
    )
    tolerance: float = Field(1e-3, ge=0, lt=0.1, description="of the budget, that the exact search may miss")
    budgets_ms: tuple[Budget, ...] | None = Field(
        None,
        min_length=1,
        description="latency budgets; null: `budget_count` from the fastest SubNet to the best",
    )
    device_budgets_ms: dict[str, Annotated[tuple[Budget, ...], Field(min_length=1)]] | None = Field(
        None, description="latency budgets of single devices, in the place of budgets_ms"
    )
    budget_count: int = Field(12, ge=10, le=1000)
    together: bool = Field(
        False, description="SubNets that meet the budgets of all devices, instead of one search each"
    )
    limits: Limits = Limits()
    device_limits: dict[str, Limits] | None = Field(
        None, description="limits of single devices, in the place of the same in `limits`"
    )
    population: int = Field(100, ge=4)
    parent_share: float = Field(0.25, gt=0, le=0.5)
    mutation_share: float = Field(0.5, ge=0, le=1, description="children made by mutation; the rest by crossover")
    mutation_probability: float = Field(0.1, gt=0, le=1, description="per variable of a mutated child")
    generations: int = Field(500, ge=1)
    plateau: int = Field(25, ge=1, description="stop after this many generations without improvement")
    populations: int = Field(2, ge=1, description="one after the other, each until its plateau; generations are of all")
    rebalance: int = Field(
        80,
        ge=0,
        description="modifications of a SubNet that others are built around: of the ends, the best at a plateau; 0: none",
    )
    beam_width: int = Field(16, ge=0, description="states that a beam keeps for the first population; 0: no beam")
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _populations_can_be_evaluated(self) -> Self:
        if self.accuracy == "measured" and self.method != "genetic":
            raise ValueError(f"search.accuracy=measured is for search=genetic, not for {self.method}")
        return self

    def limits_of(self, device: str) -> Limits:
        """What winners of one device keep."""
        own = (self.device_limits or {}).get(device, Limits()).given
        return Limits.model_validate(self.limits.given | own)

    def lists_whole_front(self, devices: Sequence[str]) -> bool:
        """Whether every SubNet that is optimal for some budget is listed, besides the winners."""
        return self.method == "exact" and len(devices) == 1 and not self.limits_of(devices[0]).given

    def budgets_of(self, device: str) -> tuple[float, ...] | None:
        """Latency budgets of one device [ms]; None: by itself."""
        return (self.device_budgets_ms or {}).get(device, self.budgets_ms)

    def of_devices(self, devices: Sequence[str]) -> Self:
        """The same without what is of other devices alone."""
        budgets = {name: own for name, own in (self.device_budgets_ms or {}).items() if name in devices}
        limits = {name: own for name, own in (self.device_limits or {}).items() if name in devices}
        return self.model_copy(update={"device_budgets_ms": budgets or None, "device_limits": limits or None})

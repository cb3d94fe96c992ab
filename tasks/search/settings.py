"""Settings of the search stage."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tasks.base.artifacts import OutsideKey
from tasks.search.placement_settings import PlacementSettings

PositiveBudget = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
WITH_UNIT = re.compile(rf"\s*([\d.]+(?:[eE][+-]?\d+)?)\s*({'|'.join(MILLISECONDS)})\s*", re.IGNORECASE)


def _without_unit(value: Any) -> Any:
    if isinstance(value, str) and (found := WITH_UNIT.fullmatch(value)):
        number = float(found[1]) * MILLISECONDS[found[2].lower()]
        raise ValueError(f"got '{value}'; allowed: a number of milliseconds, without a unit: {number:g}")
    return value


LatencyBudget = Annotated[PositiveBudget, BeforeValidator(_without_unit)]
"""A latency [ms]."""

SIZES_OF_SUBNETS = ("parameters", "macs")
"""The limits that are the same on every device."""


class WinnerLimits(BaseModel):
    """Limits that every winner keeps besides its latency budget, by prediction; null: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    energy_mj: PositiveBudget | None = Field(None, description="of one sample")
    memory_mib: PositiveBudget | None = Field(None, description="parameters and the peak of the activations")
    parameters: PositiveBudget | None = None
    macs: PositiveBudget | None = Field(None, description="multiply-accumulates of one sample")

    @property
    def given(self) -> dict[str, float]:
        """The limits that are not null."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Settings(BaseModel):
    """Settings of the search for the best SubNet within a budget.

    exact: the optimum over the complete space, within `tolerance` of the budget (`solvers.exact`); for one device without
    limits the whole front is listed, too (`solvers.whole`). genetic: as in OFA (ICLR 2020, §3.4 and its released evolution
    finder), started from a beam; the settings from `population` on are for this method. nsga2: one run of NSGA-II for all
    budgets, with the same settings except `parent_share`, `populations` and `rebalance`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["genetic", "exact", "nsga2"] = "genetic"
    accuracy: Literal["predicted", "measured"] = Field(
        "predicted", description="measured: the genetic search evaluates the SubNets of its populations"
    )
    tolerance: float = Field(1e-3, ge=0, lt=0.1, description="of the budget, that the exact search may miss")
    budgets_ms: tuple[LatencyBudget, ...] | None = Field(
        None,
        min_length=1,
        description="latency budgets; null: `budget_count` from the fastest SubNet to the best",
    )
    device_budgets_ms: dict[str, Annotated[tuple[LatencyBudget, ...], Field(min_length=1)]] | None = Field(
        None, description="latency budgets of single devices, in the place of budgets_ms"
    )
    budget_count: int = Field(12, ge=2, le=1000)
    together: bool = Field(
        False, description="SubNets that meet the budgets of all devices, instead of one search each"
    )
    limits: WinnerLimits = WinnerLimits()
    device_limits: dict[str, WinnerLimits] | None = Field(
        None, description="limits of single devices, in the place of the same in `limits`"
    )
    placement: Annotated[tuple[str, ...], OutsideKey("of the joint search, which has a key of its own")] = Field(
        (), description="devices of one search for SubNet and device of each piece, home first"
    )
    partition: Annotated[PlacementSettings, OutsideKey("of the joint search, which has a key of its own")] = Field(
        PlacementSettings(), description="links and limits of `placement`"
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
    def _budgets_rise(self) -> Self:
        of_devices = (
            {} if self.together else self.device_budgets_ms or {}
        )  # together: the budgets of one position belong together
        named = {f"device_budgets_ms.{name}": budgets for name, budgets in of_devices.items()}
        for name, budgets in {"budgets_ms": self.budgets_ms or (), **named}.items():
            if any(later <= earlier for earlier, later in pairwise(budgets)):
                got, rising = (",".join(f"{one:g}" for one in ones) for ones in (budgets, sorted(set(budgets))))
                raise ValueError(f"{name}=[{got}]; allowed: each above the one before, as [{rising}]")
        return self

    @model_validator(mode="after")
    def _populations_can_be_evaluated(self) -> Self:
        if self.accuracy == "measured" and self.method != "genetic":
            raise ValueError(f"search.accuracy=measured is for search=genetic, not for {self.method}")
        return self

    @model_validator(mode="after")
    def _devices_can_share_a_network(self) -> Self:
        if not self.placement:
            return self
        try:
            self.partition.of(self.placement)
        except ValidationError as error:
            raise ValueError(f"placement: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
        other = next((name for name in self.limits.given if name not in SIZES_OF_SUBNETS), None)
        if other is not None:
            allowed = f"{', '.join(SIZES_OF_SUBNETS)}, and partition.memory_mib"
            raise ValueError(f"limits.{other}: it is of a SubNet on one device; allowed with placement: {allowed}")
        return self

    def limits_of(self, device: str) -> WinnerLimits:
        """The limits of winners on one device."""
        own = (self.device_limits or {}).get(device, WinnerLimits()).given
        return WinnerLimits.model_validate(self.limits.given | own)

    def lists_whole_front(self, devices: Sequence[str]) -> bool:
        """Whether all SubNets that are optimal for some budget are listed, besides the winners."""
        return self.method == "exact" and len(devices) == 1 and not self.limits_of(devices[0]).given

    def budgets_of(self, device: str) -> tuple[float, ...] | None:
        """Latency budgets of one device [ms]; None: the search makes them. With a placement `budgets_ms` is for all devices."""
        return (self.device_budgets_ms or {}).get(device, None if device in self.placement else self.budgets_ms)

    def of_devices(self, devices: Sequence[str]) -> Self:
        """The settings without budgets and limits of other devices."""
        budgets = {name: own for name, own in (self.device_budgets_ms or {}).items() if name in devices}
        limits = {name: own for name, own in (self.device_limits or {}).items() if name in devices}
        shared = None if set(devices) <= set(self.placement) else self.budgets_ms
        update = {"budgets_ms": shared, "device_budgets_ms": budgets or None, "device_limits": limits or None}
        return self.model_copy(update=update)

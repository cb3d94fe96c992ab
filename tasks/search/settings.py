"""Settings of the search stage, of the refinement, and of the baselines."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from tasks.base.artifacts import OutsideKey
from tasks.base.schemas.stored import Strict
from tasks.evaluation.models import ModelSettings


class RefineSettings(Strict):
    """The number of SubNets that are measured for each budget, and the share of a budget that a winner leaves free.

    The SubNets are evaluated and timed with the settings of the predict stage: its images, `measure` and `rounds`.
    """

    candidates: int = Field(3, ge=1, le=1000, description="SubNets that are measured for each budget; 1: none")
    rounds: int = Field(12, ge=1, le=1000, description="at most; each measures a part of the candidates and learns")
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="of a budget, left free: what one measurement differs by from the next"
    )


UNIFORM, RANDOM, MACS, SIBLINGS = "uniform", "random", "macs", "siblings"
OWN = (UNIFORM, RANDOM, MACS, SIBLINGS)

BaselineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$")]


class Sibling(Strict):
    """A network of timm, trained here from random weights."""

    name: str
    options: dict[str, Any] = Field(default={}, description="further keyword arguments of timm's model")

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        from tasks.evaluation.models.timm_networks import unknown  # timm takes a second

        if fault := unknown(name):
            raise ValueError(f"{fault[0]}; allowed: {fault[1]}")
        return name

    @property
    def model(self) -> ModelSettings:
        """The network."""
        return ModelSettings(name=self.name, options=self.options)

    @property
    def title(self) -> str:
        """The name for people: the network's name, followed by its options if it has any."""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


def _named(sibling: Any) -> Any:
    return {"name": sibling} if isinstance(sibling, str) else sibling


class BaselineSettings(Strict):
    """Settings of the baselines; by default there are none.

    All are evaluated and timed like the refinement: with the images, `measure` and `rounds` of the predict stage.
    """

    uniform: bool = Field(
        False, description="SubNets with one relative width (and depth) everywhere, at each resolution"
    )
    random: int = Field(0, ge=0, le=10_000, description="random SubNets")
    macs: bool = Field(False, description="what the genetic search finds with MACs in the place of the latency")
    siblings: tuple[Annotated[Sibling, BeforeValidator(_named)], ...] = Field(
        (), description="smaller networks of timm, each trained as long as base network and SuperNet together"
    )
    files: Annotated[
        dict[BaselineName, Annotated[tuple[Path, ...], Field(min_length=1)]],
        OutsideKey("their names and contents count"),
    ] = Field({}, description="name of a baseline -> .onnx files of its trained networks, BatchNorm not folded")
    seed: int = Field(0, ge=0)

    @field_validator("files")
    @classmethod
    def _are_other_files(cls, files: dict[str, tuple[Path, ...]]) -> dict[str, tuple[Path, ...]]:
        for name, paths in files.items():
            if name in OWN:
                raise ValueError(f"'{name}' is a baseline already; allowed: other names than {', '.join(OWN)}")
            for path in paths:
                if not path.is_file():
                    raise ValueError(f"{name}: '{path}' does not exist; allowed: .onnx files")
        return files

    @property
    def wanted(self) -> bool:
        """Whether at least one baseline is requested."""
        return bool(self.uniform or self.random or self.macs or self.siblings or self.files)


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


class WinnerLimits(Strict):
    """Limits that every winner keeps besides its latency budget, by prediction; null: no limit."""

    energy_mj: PositiveBudget | None = Field(None, description="of one sample")
    memory_mib: PositiveBudget | None = Field(None, description="parameters and the peak of the activations")
    parameters: PositiveBudget | None = None
    macs: PositiveBudget | None = Field(None, description="multiply-accumulates of one sample")

    @property
    def given(self) -> dict[str, float]:
        """The limits that are not null."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Settings(Strict):
    """Settings of the search for the best SubNet within a budget.

    exact: the optimum over the complete space, within `tolerance` of the budget (`solvers.exact`); for one device without
    limits the whole front is listed, too (`solvers.front`). genetic: as in OFA (ICLR 2020, §3.4 and its released evolution
    finder), started from a beam; the settings from `population` on are for this method. nsga2: one run of NSGA-II for all
    budgets, with the same settings except `parent_share`, `populations` and `rebalance`.
    """

    method: Literal["genetic", "exact", "nsga2"] = "genetic"
    accuracy: Literal["predicted", "measured"] = Field(
        "predicted", description="measured: the genetic search evaluates the SubNets of its populations"
    )
    tolerance: float = Field(1e-3, ge=0, lt=0.1, description="of the budget, that the exact search may miss")
    budgets_ms: tuple[LatencyBudget, ...] | None = Field(
        None, min_length=1, description="latency budgets; null: `budget_count` from the fastest SubNet to the best"
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

    def limits_of(self, device: str) -> WinnerLimits:
        """The limits of winners on one device."""
        own = (self.device_limits or {}).get(device, WinnerLimits()).given
        return WinnerLimits.model_validate(self.limits.given | own)

    def lists_whole_front(self, devices: Sequence[str]) -> bool:
        """Whether all SubNets that are optimal for some budget are listed, besides the winners."""
        return self.method == "exact" and len(devices) == 1 and not self.limits_of(devices[0]).given

    def budgets_of(self, device: str) -> tuple[float, ...] | None:
        """Latency budgets of one device [ms]; None: the search makes them."""
        return (self.device_budgets_ms or {}).get(device, self.budgets_ms)

    def of_devices(self, devices: Sequence[str]) -> Self:
        """The settings without budgets and limits of other devices."""
        budgets = {name: own for name, own in (self.device_budgets_ms or {}).items() if name in devices}
        limits = {name: own for name, own in (self.device_limits or {}).items() if name in devices}
        return self.model_copy(update={"device_budgets_ms": budgets or None, "device_limits": limits or None})

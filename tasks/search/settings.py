"""Settings of the search stage, of `autotailor partition`, of the refinement, and of the baselines."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from profiling_agents.messages import CODED_BYTES, ActivationCoding
from tasks.base.artifacts import OutsideKey
from tasks.evaluation.models import ModelSettings

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST_DEVICES = 6
LINK = "-"


class PartitionLink(BaseModel):
    """A link in both directions: bandwidth [Mbit/s], 0 if there is no link, and latency of a message [ms]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bandwidth_mbps: NotNegative
    latency_ms: NotNegative


class RadioSettings(BaseModel):
    """Power [mW] of the coordinator's radio while it sends, in addition per Mbit/s, and of the coordinator while it waits.

    Source of the model: Huang et al., A close examination of performance and power characteristics of 4G LTE networks (MobiSys
    2012), whose table 4 has 132.86 mW and 283.17 mW per Mbit/s for a phone's Wi-Fi.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sending_mw: NotNegative
    mw_per_mbps: NotNegative = 0.0
    waiting_mw: NotNegative = 0.0


class PartitionSettings(BaseModel):
    """Devices, links and limits of a partition; without devices and links nothing is split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    devices: tuple[str, ...] = ()
    bandwidth_mbps: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.0, 10.0, 100.0)
    latency_ms: NotNegative = 5.0
    links: dict[str, PartitionLink] = Field(default_factory=dict)
    slow_down: dict[str, Positive] = Field(default_factory=dict)
    private: int = Field(default=0, ge=0)
    memory_mib: dict[str, Positive] = Field(default_factory=dict)
    energy_mj: Positive | None = None
    returns: bool = True
    objective: Literal["latency", "throughput"] = "latency"
    coding: ActivationCoding | None = None
    radio: RadioSettings | None = None
    page: Path | None = None
    parts: Path | None = None
    plans: Path | None = None
    ncnn: bool = False
    plans_bandwidth_mbps: tuple[Positive, Positive] = (0.1, 1000.0)
    plans_slow_down: tuple[Positive, Positive] = (1.0, 4.0)

    @model_validator(mode="after")
    def _names_devices(self) -> Self:
        if self.asked and not 2 <= len(set(self.devices)) == len(self.devices) <= MOST_DEVICES:
            got = f"[{','.join(self.devices)}]"
            raise ValueError(f"devices: got {got}; allowed: two to {MOST_DEVICES} different names, home first")
        for field in ("slow_down", "memory_mib"):
            for name in getattr(self, field):
                if name not in self.devices:
                    raise ValueError(f"{field}.{name}: there is no such device; allowed: {', '.join(self.devices)}")
        for link in self.links:
            if sorted(self.pair(link)) not in [sorted((a, b)) for a in self.devices for b in self.devices if a != b]:
                raise ValueError(f"links.{link}: it joins no two devices; allowed: A-B of {', '.join(self.devices)}")
        if self.energy_mj is not None and self.objective == "throughput":
            raise ValueError("energy_mj: it is a limit of one request; allowed with objective=latency")
        if self.plans is not None:
            self.require_plans()
        return self

    @property
    def asked(self) -> bool:
        """Whether a SubNet is to be split at all."""
        return bool(self.devices or self.links)

    def require_plans(self) -> None:
        """Raise ValueError if the settings do not permit plans for the run time."""
        for field in ("plans_bandwidth_mbps", "plans_slow_down"):
            low, high = getattr(self, field)
            if low > high:
                raise ValueError(f"{field}: got [{low:g},{high:g}]; allowed: the lower end first")
        if self.objective == "throughput" or not self.returns:
            raise ValueError(
                "plans: they are of requests that home answers; allowed with objective=latency, returns=true"
            )

    def pair(self, link: str) -> tuple[str, str]:
        """The two devices that a link joins; names of devices may contain a hyphen, too."""
        parts = link.split(LINK)
        ways = [(LINK.join(parts[:at]), LINK.join(parts[at:])) for at in range(1, len(parts))]
        return next((way for way in ways if set(way) <= set(self.devices)), (link, ""))

    def link(self, a: str, b: str, bandwidth_mbps: float) -> PartitionLink:
        """The link between two devices; an unnamed link has this bandwidth."""
        own = (one for name, one in self.links.items() if set(self.pair(name)) == {a, b})
        return next(own, PartitionLink(bandwidth_mbps=bandwidth_mbps, latency_ms=self.latency_ms))


class PlacementSettings(BaseModel):
    """Links and limits of a search over several devices, like those of a partition; bandwidth_mbps: of links without a name.
    codings: candidates, one of which is chosen for each SubNet. coding_images: number of images for measuring their losses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bandwidth_mbps: Positive = 10.0
    latency_ms: NotNegative = 5.0
    links: dict[str, PartitionLink] = Field(default_factory=dict)
    slow_down: dict[str, Positive] = Field(default_factory=dict)
    private: int = Field(default=0, ge=0)
    memory_mib: dict[str, Positive] = Field(default_factory=dict)
    returns: bool = True
    codings: Annotated[tuple[ActivationCoding, ...], Field(min_length=1)] = ("fp32", "fp16", "int8")
    coding_images: int = Field(default=256, ge=1)

    def of(self, devices: tuple[str, ...]) -> PartitionSettings:
        """The settings of a partition over these devices, the coordinator first. ValueError: invalid devices or links."""
        own = self.model_dump(include=set(PartitionSettings.model_fields) - {"bandwidth_mbps"})
        return PartitionSettings(devices=devices, bandwidth_mbps=(self.bandwidth_mbps,), **own)

    @property
    def ascending(self) -> tuple[ActivationCoding, ...]:
        """The codings from the fewest bytes to fp32, which is always included."""
        return tuple(sorted({*self.codings, "fp32"}, key=CODED_BYTES.__getitem__))


class RefineSettings(BaseModel):
    """The number of SubNets that are measured for each budget, and the share of a budget that a winner leaves free.

    The SubNets are evaluated and timed with the settings of the predict stage: its images, `measure` and `rounds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: int = Field(3, ge=1, le=1000, description="SubNets that are measured for each budget; 1: none")
    rounds: int = Field(12, ge=1, le=1000, description="at most; each measures a part of the candidates and learns")
    margin: float = Field(
        0.01, ge=0, lt=0.5, description="of a budget, left free: what one measurement differs by from the next"
    )


UNIFORM, RANDOM, MACS, SIBLINGS = "uniform", "random", "macs", "siblings"
OWN = (UNIFORM, RANDOM, MACS, SIBLINGS)

BaselineName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$")]


class Sibling(BaseModel):
    """A network of timm, trained here from random weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class BaselineSettings(BaseModel):
    """Settings of the baselines; by default there are none.

    All are evaluated and timed like the refinement: with the images, `measure` and `rounds` of the predict stage.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    limits the whole front is listed, too (`solvers.front`). genetic: as in OFA (ICLR 2020, §3.4 and its released evolution
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

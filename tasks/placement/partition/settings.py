"""Settings of `autotailor partition`."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from profiling_agents.messages import ActivationCoding

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
            raise ValueError(
                f"devices: got {got}; allowed: two to {MOST_DEVICES} different names, the coordinator first"
            )
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
                "plans: they are of requests that the coordinator answers; allowed with objective=latency, returns=true"
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

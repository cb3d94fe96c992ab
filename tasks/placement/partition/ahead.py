"""Costs of plans that are made ahead, over given links: they let a SubNet over devices appear in tables beside others."""

from collections.abc import Sequence
from dataclasses import dataclass

from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import PlannedPlacement
from adaptive_runtime.offload.split.planned import coded_share
from profiling_agents.messages import ActivationCoding
from tasks.search.placement_settings import RadioSettings, Settings

MBIT_PER_BYTE = 8e-6
S_PER_MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCosts:
    """Costs of the fastest plan that sends, over links of `bandwidth_mbps`, without load, with values in the settings' coding.

    latency_ms: of a request. home_share: share of the whole SubNet's compute time that remains on the coordinator. sent_mj:
    energy of the coordinator for sending and waiting [mJ]; None: unknown.
    """

    bandwidth_mbps: float
    latency_ms: float
    home_share: float
    sent_mj: float | None

    @classmethod
    def of(cls, plans: Sequence[PlannedPlacement], settings: Settings) -> "PlacedCosts | None":
        """plans: the first one sends nothing. None: there is no other plan."""
        mbps, coding = stated_mbps(settings), settings.coding or "fp32"
        links = links_of(settings, mbps)
        sending = [(plan.latency_ms(links, coding=coding), at) for at, plan in enumerate(plans) if plan.peers]
        if not sending:
            return None
        latency_ms, at = min(sending)
        plan, home_ms = plans[at], plans[0].home_ms
        sent_mj = None if settings.radio is None else _sent_mj(plan, links, latency_ms, settings.radio, coding)
        return cls(
            bandwidth_mbps=mbps,
            latency_ms=latency_ms,
            home_share=plan.home_ms / home_ms if home_ms else 0.0,
            sent_mj=sent_mj,
        )


def stated_mbps(settings: Settings) -> float:
    """The bandwidth for which tables show plans: the middle one of `partition.bandwidth_mbps`."""
    return sorted(settings.bandwidth_mbps)[len(settings.bandwidth_mbps) // 2]


def links_of(settings: Settings, bandwidth_mbps: float) -> dict[str, MeasuredLink]:
    """The links between the coordinator and the other devices as measured links; links without a name have this bandwidth."""
    home, *others = settings.devices
    known = {name: settings.link(home, name, bandwidth_mbps) for name in others}
    return {
        name: MeasuredLink(up_mbps=one.bandwidth_mbps, down_mbps=one.bandwidth_mbps, round_trip_ms=2 * one.latency_ms)
        for name, one in known.items()
        if one.bandwidth_mbps > 0
    }


def _sent_mj(
    plan: PlannedPlacement,
    links: dict[str, MeasuredLink],
    latency_ms: float,
    radio: RadioSettings,
    coding: ActivationCoding,
) -> float:
    """Energy of the coordinator in addition to its computation [mJ]: mW · s."""
    sending_mj, mbit_per_byte = 0.0, coded_share(coding) * MBIT_PER_BYTE
    for name, use in plan.links.items():
        mbps = links[name].up_mbps
        assert mbps, "a plan sends over links that there are"
        sending_mj += mbit_per_byte * use.up_bytes * (radio.mw_per_mbps + radio.sending_mw / mbps)
    return sending_mj + radio.waiting_mw * S_PER_MS * (latency_ms - plan.home_ms)

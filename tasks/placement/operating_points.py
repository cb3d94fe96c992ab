"""SubNets over several devices as rows, which are kept if they are preferred at some bandwidth and load.

Legend: R rows, D columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.offload.split import PlannedPlacement
from tailor_ir import SuperNet
from tasks.base.schemas.operating_points import LevelRow, against
from tasks.placement.partition.ahead import PlacedCosts, links_of
from tasks.placement.partition.plans import placements_ahead, plans_ahead
from tasks.placement.partition.tables import DeviceTimes
from tasks.search.placement_settings import Settings as PartitionSettings

BANDWIDTHS = 25
"""Number of bandwidths between the ends of `partition.plans_bandwidth_mbps` at which rows are compared."""


class PlacedLevel(NamedTuple):
    """A row over devices, and its plans that send values."""

    row: LevelRow
    plans: tuple[PlannedPlacement, ...]


@dataclass(frozen=True, slots=True)
class OtherDevices:
    """The devices besides the coordinator. tables: tables of `settings.devices`, the coordinator first.

    latency_error: the largest relative standard deviation of latencies predicted by these tables.
    """

    tables: Sequence[DeviceTimes]
    settings: PartitionSettings
    latency_error: float

    def level(self, net: SuperNet, whole: LevelRow) -> PlacedLevel | None:
        """The row of a whole SubNet over devices, with links of the stated bandwidth; None if it sends nothing.

        whole: its row on the coordinator. UserError as raised by `plans_ahead`.
        """
        ahead = plans_ahead(net, net.space.canonical(whole.config), self.tables, self.settings)
        plans = placements_ahead(ahead, self.tables, self.settings)
        costs = PlacedCosts.of(plans, self.settings)
        if costs is None:
            return None
        energy_mj = whole.energy_mj
        if energy_mj is not None and costs.sent_mj is not None:
            energy_mj = energy_mj * costs.home_share + costs.sent_mj
        changed = {
            "over": self.settings.devices[1:],
            "latency_ms": costs.latency_ms,
            "latency_error": self.latency_error,
            "energy_mj": energy_mj,
        }
        return PlacedLevel(whole.model_copy(update=changed), tuple(plan for plan in plans if plan.peers))

    def preferred(self, rows: Sequence[LevelRow], placed: Sequence[PlacedLevel]) -> NDArray[np.bool_]:
        """Whether each placed row is preferred at some bandwidth and load of the coordinator; see `preferred`."""
        return preferred(rows, placed, self.settings)


def preferred(
    rows: Sequence[LevelRow], placed: Sequence[PlacedLevel], settings: PartitionSettings
) -> NDArray[np.bool_]:
    """Whether each placed row is preferred at some bandwidth and load of the coordinator.

    A row is preferred if no other row is at least as good in all columns and better in one; among equal rows, the first is
    preferred. rows: on the coordinator. Loads: the ends of `partition.plans_slow_down`, since latencies are linear in it.
    """
    found, coding = np.zeros(len(placed), bool), settings.coding or "fp32"
    for bandwidth_mbps in np.geomspace(*settings.plans_bandwidth_mbps, BANDWIDTHS):
        links = links_of(settings, float(bandwidth_mbps))
        for slow_down in settings.plans_slow_down:
            over_ms = [min(plan.latency_ms(links, slow_down, coding) for plan in one.plans) for one in placed]
            home = [row.columns(slow_down * row.latency_ms) for row in rows]
            over = [one.row.columns(latency_ms) for one, latency_ms in zip(placed, over_ms, strict=True)]
            columns_RD = np.array(home + over)
            for at, own_D in enumerate(columns_RD[len(rows) :]):
                no_worse_R, better_R = against(columns_RD, own_D)
                better_R[: len(rows) + at] |= no_worse_R[: len(rows) + at]  # among equal rows, the first is preferred
                found[at] |= not (no_worse_R & better_R).any()
    return found

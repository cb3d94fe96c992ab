"""The rows over all levels of a bundle, on a device that is so many times slower than the one of the bundle's tables.

SubNets over other devices are those of the bundle (`export.offload`), with its plans and the accuracy of coded values.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adaptive_runtime.bundle.bundles import BundledPlacement, BundledSubNet, BundleManifest
from adaptive_runtime.model.variants import BundleVariants, load_classes
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import PlacementPlans, PlannedPlacement, SplitSubNet
from adaptive_runtime.offload.split.plans import coded_share
from adaptive_runtime.policy import VariantTable
from benchmarks.simulation import LevelRows, RowLevels
from profiling_agents.messages import ActivationCoding

HEADER_BYTES = 512
"""Of the frames around values, each way."""
NOMINAL_MBPS, NOMINAL_MS = 20.0, 5.0
"""Of the link by which placed rows stand in the table; the choice counts with what is measured."""
UPLOAD_MW_PER_MBPS, UPLOAD_MW = 283.17, 132.86
"""Power of a phone that sends by Wi-Fi. Source: Huang et al., A close examination of 4G LTE (MobiSys 2012), table 4."""


class DeviceModel(NamedTuple):
    """slower: than the device of the tables. watts: of a core that computes; idle_watts: of a device that waits."""

    slower: float
    watts: float
    idle_watts: float


class _Row(NamedTuple):
    name: str
    levels: RowLevels
    accuracy: float
    latency_ms: float
    error: float
    energy_mj: float
    memory_mib: float
    plans: tuple[PlannedPlacement, ...] = ()


def rows_of(folder: Path, manifest: BundleManifest, device: DeviceModel) -> LevelRows:
    """Of all formats with figures. Energies are times by the power of the device."""
    rows = list(_on_coordinator(manifest, device))
    coordinator = {row.levels: row for row in rows}
    form = manifest.own_format
    for subnet in manifest.subnets:
        whole = coordinator.get(RowLevels(subnet.digest, "", form))
        if whole is not None:
            rows += _placed(folder, subnet, whole, device)
    table = VariantTable(
        names=tuple(row.name for row in rows),
        accuracy=tuple(row.accuracy for row in rows),
        latency_ms=tuple(row.latency_ms for row in rows),
        latency_error=tuple(row.error for row in rows),
        energy_mj=tuple(row.energy_mj for row in rows),
        memory_mib=tuple(row.memory_mib for row in rows),
        load_class=load_classes([row.latency_ms for row in rows]),
    )
    placed = {at: row.plans for at, row in enumerate(rows) if row.plans}
    return LevelRows(table, tuple(row.levels for row in rows), placed)


def _on_coordinator(manifest: BundleManifest, device: DeviceModel) -> Iterator[_Row]:
    variants = BundleVariants.of(manifest, *manifest.known_formats)
    table = variants.table
    for at, one in enumerate(variants.variants):
        exit = "by thresholds" if one.early else one.exit or ""
        latency_ms = table.latency_ms[at] * device.slower
        yield _Row(
            name=table.names[at],
            levels=RowLevels(one.digest, exit, one.form or manifest.own_format),
            accuracy=table.accuracy[at],
            latency_ms=latency_ms,
            error=float(table.latency_error_V[at]),
            energy_mj=latency_ms * device.watts,
            memory_mib=float(table.memory_mib_V[at]),
        )


def _placed(folder: Path, subnet: BundledSubNet, whole: _Row, device: DeviceModel) -> Iterator[_Row]:
    """The SubNet over other devices, by the plan that is fastest over the nominal link."""
    if subnet.placement is None:
        return
    placement, (_, plans) = subnet.placement, opened_plans(folder, subnet.placement, device.slower)
    crossing = tuple(as_it_crosses(plan, placement.coding) for plan in plans.plans if plan.peers)
    link = MeasuredLink(up_mbps=NOMINAL_MBPS, down_mbps=NOMINAL_MBPS, round_trip_ms=NOMINAL_MS)
    links = dict.fromkeys(plans.peers, link)
    best = min(crossing, key=lambda plan: plan.latency_ms(links))
    latency_ms = best.latency_ms(links)
    sent_mbit = sum(use.up_bytes for use in best.links.values()) * 8e-6
    sent_mj = sent_mbit * (UPLOAD_MW_PER_MBPS + UPLOAD_MW / NOMINAL_MBPS)
    waits_mj = (latency_ms - best.coordinator_ms) * device.idle_watts
    over = ", ".join(placement.devices)
    yield whole._replace(
        name=f"{whole.name} over {over}",
        levels=whole.levels._replace(placement=over),
        accuracy=whole.accuracy if placement.accuracy is None else placement.accuracy,
        latency_ms=latency_ms,
        error=placement.latency_error,
        energy_mj=best.coordinator_ms * device.watts + sent_mj + waits_mj,
        plans=crossing,
    )


def opened_plans(folder: Path, placement: BundledPlacement, slower: float) -> tuple[SplitSubNet, PlacementPlans]:
    """The segments of a bundle's SubNet over devices, and its plans, if the coordinator is so many times slower."""
    split = SplitSubNet.open(folder, placement.segments)
    plans = PlacementPlans.read(folder / placement.plans, split)
    slowed = {
        "coordinator_ms": tuple(slower * ms for ms in plans.coordinator_ms),
        "slow_down": tuple(each / slower for each in plans.slow_down),
        "plans": tuple(one.model_copy(update={"coordinator_ms": slower * one.coordinator_ms}) for one in plans.plans),
    }
    return split, plans.model_copy(update=slowed)


def as_it_crosses(plan: PlannedPlacement, coding: ActivationCoding) -> PlannedPlacement:
    """A plan with bytes in a coding, and those of frames, where it counts bytes of fp32."""
    links = {
        name: use.model_copy(
            update={
                way: round(coded_share(coding) * getattr(use, way)) + HEADER_BYTES * use.messages
                for way in ("up_bytes", "down_bytes")
            }
        )
        for name, use in plan.links.items()
    }
    return plan.model_copy(update={"links": links})

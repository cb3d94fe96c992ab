"""The rows over all levels of a bundle, on a device that is so many times slower than the one of the bundle's tables.

Of each whole SubNet in the bundle's own format there are rows that another device runs: all of it, and from each of its exits
on. Values cross as int8.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

from adaptive_runtime.adapting import BundleVariants
from adaptive_runtime.adapting.variants import load_classes
from adaptive_runtime.bundles import BundledSubNet, BundleManifest
from adaptive_runtime.chains import ChainManifest
from adaptive_runtime.choice import VariantTable
from adaptive_runtime.simulation import LevelRows, RowLevels
from adaptive_runtime.split import HOME, LinkUse, PlannedPlacement

HEADER_BYTES = 512
"""Of the frames around values, each way."""
NOMINAL_MBPS, NOMINAL_MS = 20.0, 5.0
"""Of the link by which placed rows stand in the table; the choice counts with what is measured."""
UPLOAD_MW_PER_MBPS, UPLOAD_MW = 283.17, 132.86
"""Power of a phone that sends by Wi-Fi. Source: Huang et al., A close examination of 4G LTE (MobiSys 2012), table 4."""


class DeviceModel(NamedTuple):
    """slower: than the device of the tables. watts: of a core that computes; idle_watts: of a device that waits.

    peer: name of the other device; peer_faster: than this one.
    """

    slower: float
    watts: float
    idle_watts: float
    peer: str
    peer_faster: float


class _Row(NamedTuple):
    name: str
    levels: RowLevels
    accuracy: float
    latency_ms: float
    error: float
    energy_mj: float
    memory_mib: float
    plan: PlannedPlacement | None = None


def rows_of(folder: Path, manifest: BundleManifest, device: DeviceModel) -> LevelRows:
    """Of all formats with figures. Energies are times by the power of the device."""
    rows = list(_at_home(manifest, device))
    home = {row.levels: row for row in rows}
    form = manifest.own_format
    for subnet in manifest.subnets:
        whole = home.get(RowLevels(subnet.digest, "", form))
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
    placed = {at: row.plan for at, row in enumerate(rows) if row.plan is not None}
    return LevelRows(table, tuple(row.levels for row in rows), placed)


def _at_home(manifest: BundleManifest, device: DeviceModel) -> Iterator[_Row]:
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
    """Another device runs the SubNet from a cut on."""
    cuts = list(_cuts(folder, subnet))
    for cut, (share, values) in enumerate(cuts):
        home_ms = whole.latency_ms * share
        devices = (HOME,) * cut + (device.peer,) * (len(cuts) - cut)
        use = LinkUse(messages=1, up_bytes=values + HEADER_BYTES, down_bytes=HEADER_BYTES)
        others_ms = (whole.latency_ms - home_ms) / device.peer_faster
        plan = PlannedPlacement(devices=devices, home_ms=home_ms, others_ms=others_ms, links={device.peer: use})
        sent_ms = (use.up_bytes + use.down_bytes) * 8e-3 / NOMINAL_MBPS
        latency_ms = home_ms + others_ms + NOMINAL_MS + sent_ms
        sent_mbit = use.up_bytes * 8e-6
        sent_mj = sent_mbit * (UPLOAD_MW_PER_MBPS + UPLOAD_MW / NOMINAL_MBPS)
        waits_mj = (latency_ms - home_ms) * device.idle_watts
        placement = f"{device.peer} from {cut}"
        yield whole._replace(
            name=f"{whole.name}, {placement}",
            levels=whole.levels._replace(placement=placement),
            latency_ms=latency_ms,
            energy_mj=home_ms * device.watts + sent_mj + waits_mj,
            plan=plan,
        )


def _cuts(folder: Path, subnet: BundledSubNet) -> Iterator[tuple[float, int]]:
    """The share of the multiply-accumulates before a cut, and the values that cross it: the input, then behind each exit."""
    yield 0.0, prod(subnet.input_shape[1:])
    chain = subnet.nets["onnx"].chain if "onnx" in subnet.nets else None
    if chain is None:
        return
    manifest = ChainManifest.read(folder / chain)
    macs = [one.macs for one in manifest.segments]
    for cut in range(1, len(manifest.segments)):
        given = {one.name for segment in manifest.segments[:cut] for one in segment.outputs} | {manifest.input.name}
        read = {one.name: one for segment in manifest.segments[cut:] for one in segment.inputs if one.name in given}
        values = sum(prod(size or 1 for size in one.shape[1:]) for one in read.values())
        yield sum(macs[:cut]) / sum(macs), values

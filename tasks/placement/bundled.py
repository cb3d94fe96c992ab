"""SubNets of a bundle over several devices: segments with their own weights, plans to switch between, and table rows.

[SubNets over devices in a bundle](docs/partition.md#in-a-bundle) shows how to request them. The coordinator switches
among plans that are made ahead. Their costs over given links let a SubNet over devices appear in tables beside others;
its row is kept if it is preferred at some bandwidth and load.

Legend: R rows, D columns.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import BundledPlacement
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import PLANS_FILE, PlannedPlacement, SplitSubNet
from adaptive_runtime.offload.split.plans import coded_share
from profiling_agents.messages import ActivationCoding
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.schemas.winners import LevelRow, against
from tasks.data.samples import Size
from tasks.evaluation.subnets import EvaluationData
from tasks.placement.codings import CodedSubNet
from tasks.placement.partition.planning import DeviceTimes
from tasks.placement.partition.plans import ChainOptions, placements_ahead, plans_ahead, write_plans
from tasks.placement.partition.settings import PartitionSettings, RadioSettings

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
    def of(cls, plans: Sequence[PlannedPlacement], settings: PartitionSettings) -> "PlacedCosts | None":
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


def stated_mbps(settings: PartitionSettings) -> float:
    """The bandwidth for which tables show plans: the middle one of `partition.bandwidth_mbps`."""
    return sorted(settings.bandwidth_mbps)[len(settings.bandwidth_mbps) // 2]


def links_of(settings: PartitionSettings, bandwidth_mbps: float) -> dict[str, MeasuredLink]:
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


PREFIX = "placed"


@dataclass(frozen=True, slots=True)
class BundlePlacements:
    """Inputs for SubNets over devices. tables: of `settings.devices`, coordinator first. errors: relative standard deviation of
    latencies, by digest, for the SubNets to be split. threads: of the coordinator's runtime. ncnn: write ncnn files, too.
    """

    tables: Sequence[DeviceTimes]
    settings: PartitionSettings
    errors: Mapping[str, float]
    threads: int = 1
    ncnn: bool = False

    def write(
        self,
        net: SuperNet,
        config: Mapping[str, Choice],
        statistics: Statistics | None,
        folder: Path,
        images: EvaluationData,
    ) -> BundledPlacement | None:
        """Write the files of a SubNet into a bundle's folder; None: it is not to be split, or offloads nothing under any link.

        images: on which the SubNet is judged if its values are coded. UserError: as `write_plans`.
        """
        digest = net.space.digest(config)
        if digest not in self.errors:
            return None
        with tempfile.TemporaryDirectory(prefix="autotailor-placed-") as name:
            scratch = Path(name)
            options = ChainOptions(threads=self.threads, ncnn=self.ncnn, statistics=statistics)
            plans = write_plans(net, config, self.tables, self.settings, scratch, options)
            costs = PlacedCosts.of(plans.plans, self.settings)
            if costs is None:
                return None
            accuracy = self._accuracy(SplitSubNet.open(scratch), plans.plans, images, net.input_size(config))
            manifest = _renamed(ChainManifest.read(scratch / SEGMENTS_FILE), f"{digest}.{PREFIX}")
            for before, after in zip(ChainManifest.read(scratch / SEGMENTS_FILE).files, manifest.files, strict=True):
                shutil.copyfile(scratch / before, folder / after)
            segments, ahead = f"{digest}.{PREFIX}.{SEGMENTS_FILE}", f"{digest}.{PREFIX}.{PLANS_FILE}"
            write_bytes(folder / segments, manifest.to_json().encode())
            shutil.copyfile(scratch / PLANS_FILE, folder / ahead)
        found = _described(segments, ahead, manifest, plans.plans, costs, self.errors[digest])
        return found.model_copy(update={"coding": self._coding, "accuracy": accuracy})

    @property
    def _coding(self) -> ActivationCoding:
        return self.settings.coding or "fp32"

    def _accuracy(
        self, split: SplitSubNet, plans: Sequence[PlannedPlacement], images: EvaluationData, size: Size
    ) -> float | None:
        """Accuracy with coded values; None if values are sent uncoded."""
        if self._coding == "fp32":
            return None
        return CodedSubNet(split, plans, self._coding).accuracy(images, size).share


def _renamed(manifest: ChainManifest, prefix: str) -> ChainManifest:
    """The same manifest with renamed files, in the same order."""
    names = {name: f"{prefix}.{name}" for name in manifest.files}
    segments = tuple(
        one.model_copy(
            update={
                "file": names[str(one.file)],
                "ncnn": None if one.ncnn is None else (names[one.ncnn[0]], names[one.ncnn[1]]),
            }
        )
        for one in manifest.segments
    )
    files = {names[name]: digest for name, digest in manifest.files.items()}
    return manifest.model_copy(update={"segments": segments, "files": files})


def _described(
    segments: str,
    ahead: str,
    manifest: ChainManifest,
    plans: Sequence[PlannedPlacement],
    costs: PlacedCosts,
    error: float,
) -> BundledPlacement:
    return BundledPlacement(
        segments=segments,
        plans=ahead,
        files=tuple(manifest.files),
        devices=tuple(sorted({name for plan in plans for name in plan.peers})),
        bandwidth_mbps=costs.bandwidth_mbps,
        latency_ms=costs.latency_ms,
        latency_error=error,
        home_share=costs.home_share,
        sent_mj=costs.sent_mj,
    )

"""SubNets of a bundle over several devices: segments with their own weights, plans to switch between, and table rows.

[SubNets over devices in a bundle](docs/partition.md#in-a-bundle) shows how to request them. The coordinator switches
among plans that are made ahead. Their costs over given links let a SubNet over devices appear in tables beside others;
its row is kept if it is preferred at some bandwidth and load.

Legend: R rows, D columns; N samples, C channels, H height, W width, B images of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.bundle.bundles import BundledPlacement
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest
from adaptive_runtime.offload.links import MeasuredLink
from adaptive_runtime.offload.split import COORDINATOR, PLANS_FILE, PlacedSegments, PlannedPlacement, SplitSubNet
from adaptive_runtime.offload.split.plans import coded_share
from adaptive_runtime.offload.split.segments import CoordinatorSegments
from profiling_agents.messages import ActivationCoding
from profiling_agents.streams import decoded, encoded
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.schemas.winners import LevelRow, against
from tasks.data.samples import Size
from tasks.evaluation.subnets import Accuracy, EvaluationData
from tasks.placement.partition.parts import ChainOptions
from tasks.placement.partition.planning import DeviceTimes
from tasks.placement.partition.plans import plans_ahead, write_ahead
from tasks.placement.partition.settings import PartitionSettings

MBIT_PER_BYTE = 8e-6
S_PER_MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCosts:
    """Costs of the fastest plan that sends, over links of `bandwidth_mbps`, without load, with values in the settings' coding.

    latency_ms: of a request. coordinator_share: share of the whole SubNet's compute time that remains on the coordinator.
    sent_mj: energy of the coordinator for sending and waiting [mJ]; None: unknown.
    """

    bandwidth_mbps: float
    latency_ms: float
    coordinator_share: float
    sent_mj: float | None

    @classmethod
    def of(cls, plans: Sequence[PlannedPlacement], settings: PartitionSettings) -> "PlacedCosts | None":
        """plans: the first one sends nothing. None: there is no other plan."""
        middle_mbps = sorted(settings.bandwidth_mbps)[len(settings.bandwidth_mbps) // 2]
        links, coding = links_of(settings, middle_mbps), settings.coding or "fp32"
        sending = [(plan.latency_ms(links, coding=coding), at) for at, plan in enumerate(plans) if plan.peers]
        if not sending:
            return None
        latency_ms, at = min(sending)
        plan, coordinator_ms, radio = plans[at], plans[0].coordinator_ms, settings.radio
        sent_mj: float | None = None
        if radio is not None:  # mW · s
            sent_mj, mbit_per_byte = 0.0, coded_share(coding) * MBIT_PER_BYTE
            for name, use in plan.links.items():
                mbps = links[name].up_mbps
                assert mbps, "a plan sends over links with a bandwidth"
                sent_mj += mbit_per_byte * use.up_bytes * (radio.mw_per_mbps + radio.sending_mw / mbps)
            sent_mj += radio.waiting_mw * S_PER_MS * (latency_ms - plan.coordinator_ms)
        return cls(
            bandwidth_mbps=middle_mbps,
            latency_ms=latency_ms,
            coordinator_share=plan.coordinator_ms / coordinator_ms if coordinator_ms else 0.0,
            sent_mj=sent_mj,
        )


def links_of(settings: PartitionSettings, bandwidth_mbps: float) -> dict[str, MeasuredLink]:
    """The links between the coordinator and the other devices as measured links; links without a name have this bandwidth."""
    coordinator, *others = settings.devices
    known = {name: settings.link(coordinator, name, bandwidth_mbps) for name in others}
    return {
        name: MeasuredLink(up_mbps=one.bandwidth_mbps, down_mbps=one.bandwidth_mbps, round_trip_ms=2 * one.latency_ms)
        for name, one in known.items()
        if one.bandwidth_mbps > 0
    }


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
        plans = plans_ahead(net, whole.config, self.tables, self.settings).plans.plans
        costs = PlacedCosts.of(plans, self.settings)
        if costs is None:
            return None
        energy_mj = whole.energy_mj
        if energy_mj is not None and costs.sent_mj is not None:
            energy_mj = energy_mj * costs.coordinator_share + costs.sent_mj
        changed = {
            "over": self.settings.devices[1:],
            "latency_ms": costs.latency_ms,
            "latency_error": self.latency_error,
            "energy_mj": energy_mj,
        }
        return PlacedLevel(whole.model_copy(update=changed), tuple(plan for plan in plans if plan.peers))

    def preferred(self, rows: Sequence[LevelRow], placed: Sequence[PlacedLevel]) -> NDArray[np.bool_]:
        """Whether each placed row is preferred at some bandwidth and load of the coordinator.

        A row is preferred if no other row is at least as good in all columns and better in one; among equal rows, the first is
        preferred. rows: on the coordinator. Loads: the ends of `partition.plans_slow_down`, since latencies are linear in it.
        """
        found, coding = np.zeros(len(placed), bool), self.settings.coding or "fp32"
        bandwidths_mbps = np.geomspace(*self.settings.plans_bandwidth_mbps, BANDWIDTHS).tolist()
        for bandwidth_mbps, slow_down in product(bandwidths_mbps, self.settings.plans_slow_down):
            links = links_of(self.settings, bandwidth_mbps)
            over_ms = [min(plan.latency_ms(links, slow_down, coding) for plan in one.plans) for one in placed]
            coordinator = [row.columns(slow_down * row.latency_ms) for row in rows]
            over = [one.row.columns(latency_ms) for one, latency_ms in zip(placed, over_ms, strict=True)]
            columns_RD = np.array(coordinator + over)
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

        images: on which the SubNet is judged if its values are coded. UserError: as `plans_ahead` and `write_chain`.
        """
        digest = net.space.digest(config)
        if digest not in self.errors:
            return None
        ahead = plans_ahead(net, config, self.tables, self.settings)
        costs = PlacedCosts.of(ahead.plans.plans, self.settings)
        if costs is None:
            return None
        prefix, coding = f"{digest}.{PREFIX}.", self.settings.coding or "fp32"
        options = ChainOptions(threads=self.threads, ncnn=self.ncnn, statistics=statistics, prefix=prefix)
        plans = write_ahead(net, config, ahead, folder, options).plans
        segments, accuracy = f"{prefix}{SEGMENTS_FILE}", None
        if coding != "fp32":
            coded = CodedSubNet(SplitSubNet.open(folder, segments), plans, coding)
            accuracy = coded.accuracy(images, net.input_size(config)).share
        return BundledPlacement(
            segments=segments,
            plans=f"{prefix}{PLANS_FILE}",
            files=tuple(ChainManifest.read(folder / segments).files),
            devices=tuple(sorted({name for plan in plans for name in plan.peers})),
            latency_error=self.errors[digest],
            coding=coding,
            accuracy=accuracy,
            **asdict(costs),
        )


def arrived(value: Array, coding: ActivationCoding) -> Array:
    """A value as it arrives at the other device."""
    sent, content = encoded(value, coding)
    return decoded(sent, value.shape, content)


class CodedSubNet:
    """A SubNet in segments, whose values are coded wherever some plan sends them: no single plan loses more than this."""

    def __init__(self, split: SplitSubNet, plans: Sequence[PlacedSegments], coding: ActivationCoding) -> None:
        self._subnet, self._coordinator, self._coding = split.subnet, CoordinatorSegments(split), coding
        self._end = len(split.subnet.segments)
        changes = (pairwise((COORDINATOR, *plan.devices, COORDINATOR)) for plan in plans)
        self._crossings = {at for pairs in changes for at, (giver, taker) in enumerate(pairs) if giver != taker}
        """The segments before which some plan changes devices; the number behind the last one if the answer is sent."""

    def infer(self, x_NCHW: Array) -> Array:
        """The answer of one request."""
        values, first = {self._subnet.input: x_NCHW}, 0
        for cut in sorted(self._crossings | {self._end}):
            if cut > first:
                values |= self._coordinator.run(values, first, cut - 1).values
                first = cut
            if cut in self._crossings:
                names = (self._subnet.answer,) if cut == self._end else self._subnet.entering(cut, self._end - 1)
                values |= {name: arrived(values[name], self._coding) for name in names}
        return values[self._subnet.answer]

    def accuracy(self, images: EvaluationData, size: Size) -> Accuracy:
        """Accuracy on images of a size, one request per image."""
        tally = images.problem.tally()
        for x_BCHW, target in images.batches(size):
            answers = [self.infer(one[None]) for one in x_BCHW.cpu().numpy()]
            tally.add(torch.from_numpy(np.concatenate(answers)), target)
        return Accuracy.tallied(tally.found())

"""SubNets of a bundle that are split over devices: segments with their own weights, and plans among which the coordinator
switches.

[SubNets over devices in a bundle](docs/partition.md#in-a-bundle) shows how to request them.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptive_runtime.bundle.bundles import BundledPlacement
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest
from adaptive_runtime.offload.split import PLANS_FILE, PlannedPlacement, SplitSubNet
from profiling_agents.messages import ActivationCoding
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.data.samples import Size
from tasks.evaluation.subnets import EvaluationData
from tasks.placement.partition.ahead import PlacedCosts
from tasks.placement.partition.coded import CodedSubNet
from tasks.placement.partition.plans import write_plans
from tasks.placement.partition.tables import DeviceTimes
from tasks.search.placement_settings import Settings as PartitionSettings

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
            given = net, config, self.tables, self.settings, scratch
            plans = write_plans(*given, threads=self.threads, statistics=statistics, ncnn=self.ncnn)
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

"""A folder of `autotailor partition … partition.plans=FOLDER`: segments, and the plans to choose from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split.network import SplitNetwork
from adaptive_runtime.offload.split.options import SplitOptions
from adaptive_runtime.offload.split.planned import PLANS_FILE, PlacementPlans
from adaptive_runtime.offload.split.replanning import EnvelopePlacements, ReplanRules
from adaptive_runtime.offload.split.segments import SplitSubNet


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """A SubNet that may be split, and its plans."""

    split: SplitSubNet
    plans: PlacementPlans

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read and check both files of a folder.

        AdaptiveError in one line: a file is missing, damaged, or of another SubNet.
        """
        split = SplitSubNet.open(folder)
        return cls(split, PlacementPlans.read(Path(folder) / PLANS_FILE, split))

    def network(
        self,
        devices: Mapping[str, DeviceAddress],
        options: SplitOptions | None = None,
        rules: ReplanRules | None = None,
    ) -> tuple[SplitNetwork, EnvelopePlacements]:
        """The open SubNet, and the chooser of its plans. A device of the plans without an address never comes in.

        AdaptiveError: no plan names a device, or an address cannot be used.
        """
        for name in devices:
            if name not in self.plans.peers:
                allowed = ", ".join(self.plans.peers)
                raise AdaptiveError(f"device '{name}'", "no plan of the folder names it", allowed=allowed)
        options = options or SplitOptions()
        choice = EnvelopePlacements(self.plans, rules, coding=options.coding)
        return SplitNetwork(self.split, devices, choice, options), choice

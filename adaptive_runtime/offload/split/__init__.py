"""A SubNet over several devices: the coordinator has all of it, and offloads segments to other devices if that is faster.

[Several devices](docs/links.md) explains it with examples.
"""

from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.offload.split.network import SplitNetwork
from adaptive_runtime.offload.split.plans import (
    PLANS_FILE,
    LinkUse,
    PlacedSegments,
    PlacementChoice,
    PlacementPlans,
    PlannedPlacement,
    PreferredPlacements,
    StraightUse,
    StraightWay,
    way_name,
)
from adaptive_runtime.offload.split.replanning import EnvelopePlacements, PlanChange, ReplanRules, SendingPlan
from adaptive_runtime.offload.split.requests import SplitAnswer, SplitCounts, SplitEvent, SplitOptions
from adaptive_runtime.offload.split.segments import SplitSubNet

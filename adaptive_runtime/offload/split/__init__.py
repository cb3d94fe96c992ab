"""A SubNet over several devices: the coordinator has all of it, and offloads segments to other devices if that is faster.

[Several devices](docs/links.md) explains it with examples.
"""

from adaptive_runtime.base.devices import HOME
from adaptive_runtime.offload.split.answers import SplitAnswer, SplitCounts, SplitEvent
from adaptive_runtime.offload.split.network import SplitNetwork
from adaptive_runtime.offload.split.opening import PlannedSplit
from adaptive_runtime.offload.split.options import SplitOptions
from adaptive_runtime.offload.split.planned import (
    PLANS_FILE,
    LinkUse,
    PlacementPlans,
    PlannedPlacement,
    StraightUse,
    StraightWay,
)
from adaptive_runtime.offload.split.plans import PlacedSegments, PlacementChoice, PreferredPlacements, way_name
from adaptive_runtime.offload.split.replanning import EnvelopePlacements, PlanChange, ReplanRules, SendingPlan
from adaptive_runtime.offload.split.segments import SplitSubNet

__all__ = [
    "HOME",
    "PLANS_FILE",
    "EnvelopePlacements",
    "LinkUse",
    "PlacedSegments",
    "PlacementChoice",
    "PlacementPlans",
    "PlanChange",
    "PlannedPlacement",
    "PlannedSplit",
    "PreferredPlacements",
    "ReplanRules",
    "SendingPlan",
    "SplitAnswer",
    "SplitCounts",
    "SplitEvent",
    "SplitNetwork",
    "SplitOptions",
    "SplitSubNet",
    "StraightUse",
    "StraightWay",
    "way_name",
]

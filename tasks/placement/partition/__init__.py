"""A SubNet split over several devices: plans from tables of devices and links, and the parts as files."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.partition import CutRow, PartitionAnswer
    from tasks.base.schemas.placed import PlanRow, StayRow
    from tasks.placement.partition.parts import write_parts
    from tasks.placement.partition.planning import plan_partition
    from tasks.placement.partition.plans import PlansAhead, placement_plans, plan_ahead, write_chain, write_plans
    from tasks.placement.partition.tables import (
        DeviceTable,
        DeviceTimes,
        FeatureTimes,
        find_supernet,
        open_tables,
        stages_of,
        table_of,
    )
    from tasks.search.placement_settings import PartitionLink, PlacementSettings, Settings
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = [
    "CutRow",
    "DeviceTable",
    "DeviceTimes",
    "FeatureTimes",
    "PartitionAnswer",
    "PartitionLink",
    "PlacementSettings",
    "PlanRow",
    "PlansAhead",
    "Settings",
    "StayRow",
    "find_supernet",
    "open_tables",
    "placement_plans",
    "plan_ahead",
    "plan_partition",
    "stages_of",
    "table_of",
    "write_chain",
    "write_parts",
    "write_plans",
]

"""A SubNet split over several devices: plans from tables of devices and links, and the parts as files."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.base.schemas.placed import CutRow, PartitionAnswer, PlanRow, SegmentRow
    from tasks.placement.partition.parts import ChainOptions, write_chain, write_parts
    from tasks.placement.partition.planning import (
        DeviceTable,
        DeviceTimes,
        find_supernet,
        open_tables,
        plan_partition,
        stages_of,
        table_of,
    )
    from tasks.placement.partition.plans import PlansAhead, placement_plans, plan_ahead, write_plans
    from tasks.placement.partition.settings import PartitionLink
    from tasks.placement.partition.settings import PartitionSettings as Settings
else:
    __getattr__ = public_names(__name__, __file__)

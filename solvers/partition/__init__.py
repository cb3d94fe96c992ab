"""Partition of a network's steps over several devices: exact plans by latency or throughput, limits, and baselines.

The cost of a plan is the compute time of the steps plus the transfers: latency of a link + bytes / bandwidth.
`solvers.partition.problem` has the model, `solvers.partition.planner` the exact plan for any number of devices,
`solvers.partition.minimum_cut` the exact plan for two devices and the plan with the most throughput,
`solvers.partition.envelope` precomputed plans for look-up.
"""

from solvers.partition.envelope import PlanEnvelope, PlanPoint, envelope_of
from solvers.partition.minimum_cut import (
    PipelinePlan,
    all_on_coordinator,
    all_remote,
    dads,
    fastest_pipeline,
    minimum_cut,
    neighbour_search,
    neurosurgeon,
)
from solvers.partition.planner import PartitionPlanner
from solvers.partition.problem import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionLimit,
    PartitionPlan,
    PartitionProblem,
    SentValue,
    StepSegment,
    plan_of,
    segments_of,
)

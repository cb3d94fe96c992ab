"""Training steps within a budget of memory: plans, and steps by them.

    plan = training_memory.plan(module, x, budget_mib=300, optimiser=optimiser)
    loss = training_memory.step(plan, module, x, loss_function, optimiser, target)

A plan takes a module apart into spans, and keeps the values of each span in the fastest way within the budget: see
`recipes` for the means. Means after CrowdHMTware §III-C2; each is public knowledge: recomputation (Chen et al., arXiv
1604.06174), few bits (ActNN, ICML 2021; Gist, ISCA 2018), swapping (vDNN, MICRO 2016), updates inside the backward pass
(LOMO, ACL 2024).
"""

from tasks.training.memory.execution import step
from tasks.training.memory.optimisers import OptimiserOnDisk, measure_optimiser, update_early
from tasks.training.memory.planner import ALL_MEANS, MemoryPlan, StepPlanner, plan
from tasks.training.memory.recipes import Mean
from tasks.training.memory.storage import StorageCount, tensors_of

__all__ = [
    "ALL_MEANS",
    "Mean",
    "MemoryPlan",
    "OptimiserOnDisk",
    "StepPlanner",
    "StorageCount",
    "measure_optimiser",
    "plan",
    "step",
    "tensors_of",
    "update_early",
]

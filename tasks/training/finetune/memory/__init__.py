"""Fine-tuning within a memory budget: the plan before the first step, its steps, and their peak compared with the plan."""

from tasks.training.finetune.memory.steps import BudgetedSteps, TrialStep
from tasks.training.finetune.memory.telling import PlanTeller

__all__ = ["BudgetedSteps", "PlanTeller", "TrialStep"]

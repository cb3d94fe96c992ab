"""Fine-tuning within a budget of memory: a plan before the first step, its steps, and their peak beside the plan."""

from tasks.finetune.memory.steps import BudgetedSteps, TrialStep
from tasks.finetune.memory.telling import PlanTeller

__all__ = ["BudgetedSteps", "PlanTeller", "TrialStep"]

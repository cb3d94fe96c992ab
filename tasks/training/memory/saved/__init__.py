"""Plain steps of torch within a budget of memory: what autograd saves waits on disk, as far as the budget asks for it."""

from tasks.training.memory.saved.fitting import SavingPlan, StepMemory, fit
from tasks.training.memory.saved.waiting import WaitingTensors

__all__ = ["SavingPlan", "StepMemory", "WaitingTensors", "fit"]

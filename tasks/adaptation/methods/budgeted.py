"""A method that adapts within a budget of memory. Legend: B batch, C channels, H height, W width, K classes."""

import copy

import torch

from tasks.adaptation.methods.record import AdaptationMethod
from tasks.evaluation.adapted.subnet import AdaptiveSubnet
from tasks.training.memory.saved import SavingPlan, StepMemory, fit


class Budgeted:
    """Adapts bit by bit like another method; activations that exceed the budget are stored on disk.

    Plans are made at the first batch of each shape, by steps of a copy of the method. The budget counts all tensors of the
    method, the batch, and a step's own memory. plans: by the shape of a batch.
    `adapt` raises UserError if the budget cannot be met, with the smallest feasible budget in its line; the method is unchanged
    then.
    """

    def __init__(self, method: AdaptationMethod, memory_mib: float) -> None:
        self.subnet, self._method, self._memory_mib = method.subnet, method, memory_mib
        self.plans: dict[torch.Size, SavingPlan] = {}
        self._memories: dict[torch.Size, StepMemory] = {}

    def adapt(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        if x_BCHW.shape not in self.plans:
            plan = self._planned(x_BCHW)
            self.plans[x_BCHW.shape], self._memories[x_BCHW.shape] = plan, StepMemory(plan.kept_bytes)
        return _step(self._method, x_BCHW, self._memories[x_BCHW.shape])

    def _planned(self, x_BCHW: torch.Tensor) -> SavingPlan:
        def step(memory: StepMemory) -> None:
            twin = copy.deepcopy(self._method)
            _step(twin, x_BCHW, memory)
            _step(twin, x_BCHW, memory)  # the second step starts with the optimiser's state in memory

        where = f"memory_mib={self._memory_mib:g} for batches of {len(x_BCHW)} images"
        return fit(step, self._memory_mib, where=where, given=lambda: [x_BCHW])

    def reset(self) -> None:
        """Go back to the source."""
        self._method.reset()


def _step(method: AdaptationMethod, x_BCHW: torch.Tensor, memory: StepMemory) -> torch.Tensor:
    subnets = [each for each in vars(method).values() if isinstance(each, AdaptiveSubnet)]
    staying = [tensor for each in subnets for tensor in (*each.network.parameters(), *each.network.buffers())]
    with memory.forward([*staying, x_BCHW]):
        return method.adapt(x_BCHW)

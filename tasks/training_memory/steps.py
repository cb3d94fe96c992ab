"""Training steps by a plan."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tasks.errors import UserError
from tasks.training_memory.disk import SwapFile
from tasks.training_memory.execution import Execution
from tasks.training_memory.planner import MemoryPlan, tensors_by_name
from tasks.training_memory.updating import updater

Loss = Callable[..., Tensor]


def step(
    plan: MemoryPlan,
    module: nn.Module,
    x: Tensor,
    loss: Loss,
    optimiser: torch.optim.Optimizer | None = None,
    target: Tensor | None = None,
) -> float:
    """One training step by a plan: forward, backward and, with an optimiser, the update. Returns the loss.

    x: (B, …) as the plan was made for. loss: of the output, and of the target where there is one; a mean over
    samples, so that parts of a batch count by their size. Without an optimiser, gradients stay in `grad`.
    """
    if len(x) != plan.batch:
        raise UserError("training memory", f"a batch of {len(x)}", allowed=f"{plan.batch}, that of the plan")
    tensors = tensors_by_name(module) | plan.constants
    early = updater(optimiser) if optimiser is not None and plan.early else None
    programs = [option.program for option in plan.options]
    size = plan.batch // plan.micro_batches
    sum_of_losses = 0.0
    with SwapFile(plan.folder) as disk:
        for start in range(0, plan.batch, size):
            last = start + size == plan.batch
            ready = early if early is not None and last else _nothing
            execution = Execution(plan.facts, programs, tensors, disk, ready)
            output = execution.forward(x[start : start + size])
            part = None if target is None else target[start : start + size]
            value, gradient = _loss_gradient(output, loss, part, 1 / plan.micro_batches)
            del output
            sum_of_losses += value
            execution.backward(gradient)
            disk.clear()
    if optimiser is not None:
        if early is None:
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return sum_of_losses


def _nothing(weight: Tensor) -> None:
    """A gradient that is complete stays where it is."""


def _loss_gradient(output: Tensor, loss: Loss, target: Tensor | None, share: float) -> tuple[float, Tensor]:
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        value = (loss(leaf) if target is None else loss(leaf, target)) * share
        value.backward()
    assert leaf.grad is not None
    return float(value.detach()), leaf.grad

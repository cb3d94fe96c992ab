"""Training steps by a plan."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tasks.base.errors import UserError
from tasks.training.memory.disk import SwapFile
from tasks.training.memory.execution import Execution
from tasks.training.memory.planner import MemoryPlan, tensors_by_name
from tasks.training.memory.states import OptimiserOnDisk, plain_optimiser
from tasks.training.memory.updating import updater

Loss = Callable[..., Tensor]


def step(
    plan: MemoryPlan,
    module: nn.Module,
    x: Tensor,
    loss: Loss,
    optimiser: torch.optim.Optimizer | OptimiserOnDisk | None = None,
    target: Tensor | None = None,
) -> float:
    """One training step by a plan: forward, backward and, with an optimiser, the update. Returns the loss.

    x: (B, …) as the plan was made for. loss: of the output, and of the target where there is one; a mean over
    samples, so that parts of a batch count by their size. Without an optimiser, gradients stay in `grad`.
    Errors: a batch of another size; a plan whose optimiser's state is on disk, and an optimiser that keeps it in memory.
    """
    if len(x) != plan.batch:
        raise UserError("training memory", f"a batch of {len(x)}", allowed=f"{plan.batch}, that of the plan")
    tensors = tensors_by_name(module) | plan.constants
    plain = plain_optimiser(optimiser)
    early = _early(plan, optimiser)
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
    if plain is not None:
        if early is None:
            plain.step()
        plain.zero_grad(set_to_none=True)
    return sum_of_losses


def _early(
    plan: MemoryPlan, optimiser: torch.optim.Optimizer | OptimiserOnDisk | None
) -> Callable[[Tensor], None] | None:
    """What updates a weight as soon as its gradient is complete; None where the optimiser's own step does it in the end."""
    if plan.state_on_disk and isinstance(optimiser, torch.optim.Optimizer):
        raise UserError(
            "training memory",
            "a plan that leaves the optimiser's state on disk, and an optimiser that keeps it in memory",
            next_step="give OptimiserOnDisk(optimiser) to the step, as to the planner",
        )
    if isinstance(optimiser, OptimiserOnDisk):
        if plan.state_on_disk:
            optimiser.put_away()
            return optimiser.update
        optimiser.bring_back()
    plain = plain_optimiser(optimiser)
    return updater(plain) if plain is not None and plan.early else None


def _nothing(weight: Tensor) -> None:
    """A gradient that is complete stays where it is."""


def _loss_gradient(output: Tensor, loss: Loss, target: Tensor | None, share: float) -> tuple[float, Tensor]:
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        value = (loss(leaf) if target is None else loss(leaf, target)) * share
        value.backward()
    assert leaf.grad is not None
    return float(value.detach()), leaf.grad

"""Training steps by a plan: their instructions run, the forward pass without autograd, then the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tasks.base.errors import UserError
from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import Given, pass_between, rule_of
from tasks.training.memory.optimisers import OptimiserOnDisk, plain_optimiser, updater
from tasks.training.memory.planner import MemoryPlan, tensors_by_name
from tasks.training.memory.program import Do, Join, SpanProgram, StepFacts, StepInstruction
from tasks.training.memory.recipes import LOSSY
from tasks.training.memory.storage import CodedGroups, Gates, SwapFile


class Execution:
    """One forward and one backward pass of a network.

    tensors: parameters, buffers and constants by name. ready: told each trained weight as soon as its gradient is
    complete in `grad`.
    """

    def __init__(
        self,
        facts: StepFacts,
        programs: list[SpanProgram],
        tensors: dict[str, Tensor],
        disk: SwapFile | None = None,
        ready: Callable[[nn.Parameter], None] = lambda _: None,
    ) -> None:
        self._facts, self._programs, self._tensors = facts, programs, tensors
        self._nodes = facts.network.nodes
        self._disk, self._ready = disk, ready
        self._live: dict[int, Any] = {}
        self._held: dict[int, CodedGroups] = {}
        self._gates: dict[int, Gates] = {}
        self._aside: dict[int, tuple[Tensor, ...]] = {}
        self._gradients: dict[int, Any] = {}
        self._weights: dict[int, Tensor] = {}
        self._uses = dict(facts.weight_uses)
        self._views: dict[int, list[int]] = {}
        for node in facts.network.operators:
            self._views.setdefault(node.base, []).append(node.index)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The output of the network."""
        self._input = x.detach()
        for program in self._programs:
            for instruction in program.forward:
                self._do(instruction)
        output: Tensor = self._value(self._facts.network.output)
        self._free(self._nodes[self._facts.network.output].base)
        return output

    @torch.no_grad()
    def backward(self, gradient: Tensor) -> None:
        """Accumulates into `grad` of the trained weights. gradient: of the output."""
        self._gradients[self._facts.network.output] = gradient
        del gradient
        for program in reversed(self._programs):
            for instruction in program.backward:
                self._do(instruction)
        assert not self._gradients
        assert not self._weights

    def _do(self, instruction: StepInstruction) -> None:
        index = instruction.node
        match instruction.do:
            case Do.RUN | Do.AGAIN if instruction.in_place:
                self._overwrite(self._nodes[index], first=instruction.do is Do.RUN)
            case Do.RUN:
                self._run(self._nodes[index])
            case Do.AGAIN:
                node = self._nodes[index]
                self._live[index] = rule_of(node).again(node, self._inputs(node), self._aside.get(index, ()))
            case Do.FREE:
                self._free(index)
            case Do.ENCODE:
                self._held[index] = CodedGroups.of(self._live[index], LOSSY[instruction.coding])
            case Do.DECODE:
                self._live[index] = self._held.pop(index).value()
            case Do.GATE:
                needs = self._facts.needs[index]
                assert needs.gate is not None
                self._gates[index] = Gates.of(self._live[index], *needs.gate)
            case Do.WRITE:
                assert self._disk is not None
                self._disk.write(index, self._live[index])
            case Do.FETCH:
                assert self._disk is not None
                self._live[index] = self._disk.fetch(index)
            case Do.READ:
                assert self._disk is not None
                self._disk.wait(index)
            case Do.PARK:
                self._park(index)
            case Do.UNPARK:
                assert self._disk is not None
                self._gradients[index] = self._disk.fetch(_parking(index))
                self._disk.wait(_parking(index))
            case Do.BACKWARD:
                self._backward(self._nodes[index], instruction)

    def _park(self, index: int) -> None:
        assert self._disk is not None
        self._disk.write(_parking(index), self._gradients.pop(index))
        self._disk.wait(_parking(index))

    def _value(self, index: int) -> Any:
        """The value of a node; views are made of what they read."""
        node = self._nodes[index]
        if node.kind != "operator":
            return self._facts.network.source(node, self._tensors, self._input)
        if index in self._live:
            return self._live[index]
        assert node.view, f"value {node.name} is not there"
        return node.run(self._inputs(node))

    def _inputs(self, node: StepNode) -> list[Any]:
        return [self._value(read) for read in node.inputs]

    def _run(self, node: StepNode) -> None:
        self._live[node.index], aside = rule_of(node).forward(node, self._inputs(node))
        if aside:
            self._aside[node.index] = aside

    def _overwrite(self, node: StepNode, *, first: bool) -> None:
        in_place = rule_of(node).in_place
        assert in_place is not None
        value, aside = in_place(node, self._inputs(node), None if first else self._aside.get(node.index, ()))
        if first and aside:
            self._aside[node.index] = aside
        self._free(node.inputs[0])
        self._live[node.index] = value

    def _free(self, base: int) -> None:
        if self._disk is not None:
            self._disk.wait(base)
        for index in self._views.get(base, ()):
            self._live.pop(index, None)

    def _backward(self, node: StepNode, instruction: StepInstruction) -> None:
        gradient = self._gradients.pop(node.index)
        if node.operator == "getitem":
            self._slot(node, gradient)
            return
        rule, needs = rule_of(node), self._facts.needs[node.index]
        gate = None
        if needs.gate is not None:
            gates = self._gates.pop(node.index, None)
            gate = gates.times if gates else pass_between(self._value(node.index), needs.gate)
        given = Given(
            [self._value(read) if place in needs.inputs else None for place, read in enumerate(node.inputs)],
            [self._nodes[read].shape for read in node.inputs],
            self._aside.pop(node.index, ()),
            gate,
        )
        backward = rule.backward
        if Join.ONTO in instruction.joins:
            backward = self._onto(node)
        elif instruction.in_place and rule.backward_in_place is not None and gradient.is_contiguous():
            backward = rule.backward_in_place
        elif instruction.into_input and rule.backward_into_input is not None:
            backward = rule.backward_into_input
        found = backward(node, gradient, given)
        del given
        del gradient
        for place, join in enumerate(instruction.joins):
            new, found[place] = found[place], None
            if join is None or join is Join.ONTO:
                continue
            read = node.inputs[place]
            if self._nodes[read].kind == "parameter":
                self._weight(read, new)
            else:
                self._join(read, new, join)

    def _onto(self, node: StepNode) -> Callable[[StepNode, Any, Given], list[Any]]:
        onto, rule = self._gradients[node.inputs[0]], rule_of(node)

        def backward(node: StepNode, gradient: Any, given: Given) -> list[Any]:
            assert rule.backward_onto is not None
            return rule.backward_onto(node, gradient, given, onto)

        return backward

    def _join(self, read: int, new: Tensor, join: Join) -> None:
        old: Any = self._gradients.get(read)
        if join is Join.FIRST:
            self._gradients[read] = new
        elif join is Join.INTO_OLD:
            old.add_(new)
        elif join is Join.INTO_NEW:
            self._gradients[read] = new.add_(old)
        else:
            self._gradients[read] = old + new

    def _slot(self, node: StepNode, gradient: Tensor) -> None:
        """The gradient of one part of a value with several."""
        source, place = node.inputs[0], node.args[1]
        slots = self._gradients.setdefault(source, [None] * self._nodes[source].parts)
        slots[place] = gradient if slots[place] is None else slots[place] + gradient

    def _weight(self, index: int, gradient: Tensor) -> None:
        known = self._weights.pop(index, None)
        gradient = gradient if known is None else known.add_(gradient)
        self._uses[index] -= 1
        if self._uses[index]:
            self._weights[index] = gradient
            return
        weight = self._tensors[self._nodes[index].name]
        assert isinstance(weight, nn.Parameter)
        weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self._ready(weight)


def _parking(index: int) -> int:
    """The key on disk of the gradient of a node; keys of values are not negative."""
    return -1 - index


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

"""The rule of an operator without one of its own: it needs all its inputs, and runs again under autograd."""

from typing import Any

import torch

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.record import Given, Gradients, RuleNeeds, make_rule


def needs_all_inputs(node: StepNode) -> RuleNeeds:
    return RuleNeeds(frozenset(range(len(node.inputs))))


def _by_autograd(node: StepNode, gradient: Any, given: Given) -> Gradients:
    leaves = [
        tensor.detach().requires_grad_() if wanted else tensor
        for tensor, wanted in zip(given.tensors, node.wants, strict=True)
    ]
    with torch.enable_grad():
        value = node.run(leaves)
    wanted = [leaf for leaf, want in zip(leaves, node.wants, strict=True) if want]
    shared = gradient.untyped_storage()._cdata
    found = iter(torch.autograd.grad(value, wanted, gradient, allow_unused=True, materialize_grads=True))
    own = (each.clone() if each.untyped_storage()._cdata == shared else each for each in found)
    return [next(own) if want else None for want in node.wants]


AUTOGRAD = make_rule(needs_all_inputs, _by_autograd)
CHEAP_AUTOGRAD = make_rule(needs_all_inputs, _by_autograd, cheap=True)

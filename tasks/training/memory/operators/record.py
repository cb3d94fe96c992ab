"""The rule of an operator: its record, and the default for operators without a rule of their own.

The default needs all inputs of the operator, and runs it again under autograd.

Legend of the package: B batch, C channels, H height, W width, I inputs, O outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import StepNode

SMALLEST_IN_PLACE_BYTES = 2**22
"""Smaller gradients get memory of their own, and stay there: many small parts cost more time than the memory is worth."""


@dataclass(frozen=True, slots=True)
class RuleNeeds:
    """What the backward pass of an operator needs of the forward pass.

    inputs: places in `StepNode.inputs` whose values are needed. gate: a gradient passes where the output lies between
    these bounds.
    """

    inputs: frozenset[int] = frozenset()
    gate: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What the backward pass of an operator gets.

    tensors: values of the needed inputs; others are None. shapes: of all inputs. aside: what the forward pass kept.
    gate: gives the gradient where it passes, written into the second argument, or into a new tensor.
    """

    tensors: Sequence[Any]
    shapes: Sequence[torch.Size]
    aside: tuple[Tensor, ...] = ()
    gate: Callable[[Tensor, Tensor | None], Tensor] | None = None


Gradients = list[Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """forward: the value, and small tensors that are kept aside. again: the same value, from what was kept aside.

    backward: a gradient for each input that wants one. alias: inputs may get the output's gradient itself. cheap:
    computing it again costs no more than reading its inputs. in_place: as `again`, or as `forward` where nothing was kept
    aside yet (None), the value written over that of the first input. backward_in_place: as `backward`, the first input's
    gradient written over the output's. backward_into_input: over the first input's value. backward_onto: added to the
    gradient that the first input has, sample by sample, and not given back. aside_again: `forward` gives the same aside
    from the same inputs.
    """

    needs: Callable[[StepNode], RuleNeeds]
    backward: Callable[[StepNode, Any, Given], Gradients]
    forward: Callable[[StepNode, Sequence[Any]], tuple[Any, tuple[Tensor, ...]]]
    again: Callable[[StepNode, Sequence[Any], tuple[Tensor, ...]], Any]
    alias: bool = False
    cheap: bool = False
    in_place: Callable[[StepNode, Sequence[Any], tuple[Tensor, ...] | None], tuple[Any, tuple[Tensor, ...]]] | None = (
        None
    )
    backward_in_place: Callable[[StepNode, Any, Given], Gradients] | None = None
    backward_into_input: Callable[[StepNode, Any, Given], Gradients] | None = None
    backward_onto: Callable[[StepNode, Any, Given, Tensor], Gradients] | None = None
    aside_again: bool = False


def _plain(node: StepNode, tensors: Sequence[Any]) -> tuple[Any, tuple[Tensor, ...]]:
    return node.run(tensors), ()


def _plain_again(node: StepNode, tensors: Sequence[Any], aside: tuple[Tensor, ...]) -> Any:
    return node.run(tensors)


def needs_nothing(node: StepNode) -> RuleNeeds:
    return RuleNeeds()


def make_rule(
    needs: Callable[[StepNode], RuleNeeds], backward: Callable[[StepNode, Any, Given], Gradients], **options: Any
) -> Rule:
    return Rule(needs, backward, **{"forward": _plain, "again": _plain_again, **options})


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

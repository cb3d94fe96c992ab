"""Rules of operators: the needs of each operator in the backward pass, and its gradient from them."""

from collections.abc import Sequence

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators.elementwise import (
    ADD,
    DROPOUT,
    EXPAND,
    GATE,
    MUL,
    PERMUTE,
    RESHAPE,
    SELECT,
    SLICE,
    SPLIT,
    TRANSPOSE,
    UNBIND,
    pass_between,
)
from tasks.training.memory.operators.layers import (
    BATCH_NORM,
    CONVOLUTION,
    LAYER_NORM,
    LINEAR,
    MAX_POOL,
    MEAN,
    batch_norm_parts,
)
from tasks.training.memory.operators.record import (
    AUTOGRAD,
    CHEAP_AUTOGRAD,
    SMALLEST_IN_PLACE_BYTES,
    Given,
    Rule,
    RuleNeeds,
)

RULES = {
    "conv2d": CONVOLUTION,
    "linear": LINEAR,
    "batch_norm": BATCH_NORM,
    "layer_norm": LAYER_NORM,
    **dict.fromkeys(("relu", "relu6", "hardtanh"), GATE),
    "max_pool2d": MAX_POOL,
    **dict.fromkeys(("mean", "adaptive_avg_pool2d"), MEAN),
    **dict.fromkeys(("add", "sub"), ADD),
    "mul": MUL,
    "dropout": DROPOUT,
    **dict.fromkeys(
        ("gelu", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "leaky_relu", "elu"), CHEAP_AUTOGRAD
    ),
    **dict.fromkeys(
        ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "contiguous"), RESHAPE
    ),
    "transpose": TRANSPOSE,
    "permute": PERMUTE,
    "select": SELECT,
    "slice": SLICE,
    "expand": EXPAND,
    "unbind": UNBIND,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), SPLIT),
}


def shares_gradient(node: StepNode) -> bool:
    """Whether gradients of inputs may be the output's gradient itself, or a view of it."""
    return rule_of(node).alias or (node.operator == "dropout" and node.view) or node.operator == "getitem"


def copies_gradient(node: StepNode, readers: Sequence[StepNode]) -> bool:
    """Whether the gradient of a reshaped value comes in another order of its axes, and is put in order first."""
    return rule_of(node) is RESHAPE and any(rule_of(reader) in (PERMUTE, TRANSPOSE) for reader in readers)


def rule_of(node: StepNode) -> Rule:
    """The rule of an operator; one of its own where it can be kept small, else autograd's."""
    if node.operator == "conv2d" and isinstance(node.argument(4), str):
        return AUTOGRAD
    if node.operator == "adaptive_avg_pool2d" and list(node.argument(1)) != [1, 1]:
        return AUTOGRAD
    if node.operator == "mean" and node.argument(1) is None:
        return AUTOGRAD
    return RULES.get(node.operator, AUTOGRAD)


__all__ = [
    "PERMUTE",
    "SMALLEST_IN_PLACE_BYTES",
    "TRANSPOSE",
    "Given",
    "Rule",
    "RuleNeeds",
    "batch_norm_parts",
    "copies_gradient",
    "pass_between",
    "rule_of",
    "shares_gradient",
]

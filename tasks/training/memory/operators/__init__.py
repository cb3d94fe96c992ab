"""What each operator needs of the forward pass in the backward pass, and its gradient from that."""

from tasks.training.memory.operators.gates import pass_between
from tasks.training.memory.operators.norms import batch_norm_parts
from tasks.training.memory.operators.record import SMALLEST_IN_PLACE_BYTES, Given, Rule, RuleNeeds
from tasks.training.memory.operators.table import copies_gradient, rule_of, shares_gradient
from tasks.training.memory.operators.views import PERMUTE, TRANSPOSE

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

"""A rule of the conversion: what it matches, what it writes in its place, and how much results may change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tailor_ir.conversion.draft import OnnxDraft
from tailor_ir.conversion.nodes import OnnxNode

ConversionStage = Literal["fusion", "constants"]

EXACT = 0.0
"""The same numbers are computed by the same operators."""
ROUNDING = 1e-5
"""Of the largest output: sums of fp32 in another order, and weights that are multiplied ahead."""

NodeRewrite = Callable[[OnnxDraft, OnnxNode], bool]
"""Rewrites what begins or ends with a node; whether it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionRule:
    """One rule. `apply` rewrites the draft wherever the rule matches, and says how often it did."""

    name: str
    stage: ConversionStage
    matches: str
    writes: str
    tolerance: float
    apply: Callable[[OnnxDraft], int]


def at_each(rewrites: dict[str, NodeRewrite]) -> Callable[[OnnxDraft], int]:
    """A rule's `apply` of one rewrite for each operator of ONNX."""

    def apply(draft: OnnxDraft) -> int:
        count = 0
        for node in draft.in_order():
            if node in draft.nodes and node.standard and node.op in rewrites:
                count += rewrites[node.op](draft, node)
        return count

    return apply

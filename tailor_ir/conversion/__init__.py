"""ONNX files without redundancy: rules that fuse, fold, deduplicate and remove, each checked by outputs."""

from tailor_ir.conversion.draft import ConversionRule
from tailor_ir.conversion.engine import Conversion, RuleOutcome, UndoneRule, convert, count_nodes
from tailor_ir.conversion.rules import FEWEST_NODES, RULES, UNREACHED_KERNELS

__all__ = [
    "FEWEST_NODES",
    "RULES",
    "UNREACHED_KERNELS",
    "Conversion",
    "ConversionRule",
    "RuleOutcome",
    "UndoneRule",
    "convert",
    "count_nodes",
]

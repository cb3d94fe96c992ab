"""Alternatives: other ways to compute what blocks of a network compute, with weights of their own."""

from tailor_ir.alternatives.adding import ALTERNATIVES, Refused, add_alternatives
from tailor_ir.alternatives.fitting import PASSES, FirstWeights, fit_alternatives

__all__ = ["ALTERNATIVES", "PASSES", "FirstWeights", "Refused", "add_alternatives", "fit_alternatives"]

"""Alternatives: other ways to compute what blocks of a network compute, with weights of their own."""

from tailor_ir.alternatives.adding import ALTERNATIVES, Refused, add_alternatives

__all__ = ["ALTERNATIVES", "Refused", "add_alternatives"]

"""Alternatives: other ways to compute the result of blocks of a network, with weights of their own."""

from tailor_ir.alternatives.adding import ALTERNATIVES, Refused, add_alternatives
from tailor_ir.alternatives.fitting import PASSES, FirstWeights, fit_alternatives

"""The pool of a bundle's SubNets: which are in memory, within a budget.

[The run time](docs/runtime.md#memory) says what is shared, what a SubNet takes, and what goes first.
"""

from adaptive_runtime.pool.parts import VariantError, failure
from adaptive_runtime.pool.pool import SubNetPool
from adaptive_runtime.pool.variants import STACK_FRAME, Answerer, PlacedRuns, PlacedRuntime, Variant

__all__ = ["STACK_FRAME", "Answerer", "PlacedRuns", "PlacedRuntime", "SubNetPool", "Variant", "VariantError", "failure"]

"""The pool of a bundle's SubNets: keeps some in memory, within a budget.

[The run time](docs/runtime.md#memory) explains sharing, the memory of a SubNet, and the order of freeing.
"""

from adaptive_runtime.pool.pool import SubNetPool
from adaptive_runtime.pool.prepared import VariantError, failure
from adaptive_runtime.pool.variants import STACK_FRAME, Answerer, PlacedRuns, PlacedRuntime, Variant

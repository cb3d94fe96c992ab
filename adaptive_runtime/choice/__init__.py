"""Which variant a deployed model should run now: exact look-up in tables, choice under load, switching.

[The choice at run time](docs/runtime_choice.md) explains it with examples.
"""

from adaptive_runtime.choice.inputs import ChoiceLimits, LoadFactors
from adaptive_runtime.choice.lookup import Found, VariantLookUp
from adaptive_runtime.choice.table import VariantTable

__all__ = ["ChoiceLimits", "Found", "LoadFactors", "VariantLookUp", "VariantTable"]

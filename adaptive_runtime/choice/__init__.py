"""Which variant a deployed model should run now: exact look-up in tables, choice under load, switching.

[The choice at run time](docs/runtime_choice.md) explains it with examples.
"""

from adaptive_runtime.choice.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs
from adaptive_runtime.choice.inputs import ChoiceLimits, LoadFactors, RequestProgress
from adaptive_runtime.choice.log import DecisionLog, LoggedDecision, LogSection, read_log, replay
from adaptive_runtime.choice.lookup import FoundVariant, VariantLookUp
from adaptive_runtime.choice.objectives import LeastCost, MostAccurate, Objective
from adaptive_runtime.choice.published import FixedChoice, LoadBandChoice, RatioChoice
from adaptive_runtime.choice.runs import RunByRun
from adaptive_runtime.choice.switching import Switching
from adaptive_runtime.choice.table import VariantTable
from adaptive_runtime.choice.warm import WarmFirst

__all__ = [
    "ChoiceLimits",
    "ChoicePolicy",
    "ChoiceState",
    "Decision",
    "DecisionInputs",
    "DecisionLog",
    "FixedChoice",
    "FoundVariant",
    "LeastCost",
    "LoadBandChoice",
    "LoadFactors",
    "LogSection",
    "LoggedDecision",
    "MostAccurate",
    "Objective",
    "RatioChoice",
    "RequestProgress",
    "RunByRun",
    "Switching",
    "VariantLookUp",
    "VariantTable",
    "WarmFirst",
    "read_log",
    "replay",
]

"""Choice of the variant that a deployed model runs now: exact look-up in tables, choice under load, switching.

[The choice at run time](docs/runtime_choice.md) explains it with examples.
"""

from adaptive_runtime.policy.decisions import ChoicePolicy, ChoiceState, Decision, DecisionInputs, DeviceContext
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors, RequestProgress
from adaptive_runtime.policy.log import DecisionLog, LoggedDecision, LogSection, read_log, replay
from adaptive_runtime.policy.lookup import FoundVariant, VariantLookUp
from adaptive_runtime.policy.objectives import LeastCost, MostAccurate, Objective
from adaptive_runtime.policy.rules import ByRules, ChoiceRules, parse_rules
from adaptive_runtime.policy.runs import RunByRun
from adaptive_runtime.policy.scoring import (
    BatteryMu,
    BestScore,
    CriterionWeights,
    PairwisePreferences,
    ScoredObjectives,
)
from adaptive_runtime.policy.switching import Switching
from adaptive_runtime.policy.table import VariantTable
from adaptive_runtime.policy.warm import WarmFirst

__all__ = [
    "BatteryMu",
    "BestScore",
    "ByRules",
    "ChoiceLimits",
    "ChoicePolicy",
    "ChoiceRules",
    "ChoiceState",
    "CriterionWeights",
    "Decision",
    "DecisionInputs",
    "DecisionLog",
    "DeviceContext",
    "FoundVariant",
    "LeastCost",
    "LoadFactors",
    "LogSection",
    "LoggedDecision",
    "MostAccurate",
    "Objective",
    "PairwisePreferences",
    "RequestProgress",
    "RunByRun",
    "ScoredObjectives",
    "Switching",
    "VariantLookUp",
    "VariantTable",
    "WarmFirst",
    "parse_rules",
    "read_log",
    "replay",
]

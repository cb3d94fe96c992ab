"""Choice of the variant that a deployed model runs now: exact look-up in tables, choice under load, switching.

[The choice at run time](docs/runtime_choice.md) explains it with examples.
"""

from adaptive_runtime.policy.choosing import RequestProgress, Switching, choose
from adaptive_runtime.policy.decisions import (
    ChoicePolicy,
    ChoiceState,
    Decision,
    DecisionInputs,
    DecisionLog,
    DeviceContext,
    LoggedDecision,
    LogSection,
    read_log,
    replay,
)
from adaptive_runtime.policy.inputs import ChoiceLimits, LoadFactors, VariantTable
from adaptive_runtime.policy.lookup import FoundVariant, LeastCost, MostAccurate, Objective, VariantLookUp
from adaptive_runtime.policy.parsing import parse_rules
from adaptive_runtime.policy.rules import ByRules, ChoiceRules
from adaptive_runtime.policy.scoring import (
    BatteryMu,
    BestScore,
    CriterionWeights,
    PairwisePreferences,
    ScoredObjectives,
)

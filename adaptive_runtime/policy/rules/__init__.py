"""Rules of the user, as text: the main criterion by battery, memory, load and temperature.

[The choice at run time](docs/runtime_choice.md#rules) has the language with examples.
"""

from adaptive_runtime.policy.rules.parsing import parse_rules
from adaptive_runtime.policy.rules.policy import ByRules
from adaptive_runtime.policy.rules.rules import ChoiceRule, ChoiceRules, RuleCondition

__all__ = ["ByRules", "ChoiceRule", "ChoiceRules", "RuleCondition", "parse_rules"]

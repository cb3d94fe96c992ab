"""Rules from their text.

rules       rule, or several with `;` or ends of lines between them
rule        [condition ->] action, action, ...
condition   comparison and comparison or ...        (`and` binds closer)
comparison  battery < 20% | memory < 200 MiB | memory < 10% | load > 80% | temperature > 70 C | charging | not charging
action      accuracy first | energy first | latency first | mu = 0.3 | mu by battery [0%: 0.2, 100%: 1]
            | weigh accuracy:energy = 3, ... | at most 30 mJ | at most 200 MiB | weights off
"""

import re
from itertools import combinations
from math import inf
from typing import Any, NoReturn, cast

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.rules import ChoiceRule, ChoiceRules, ComparisonSign, Quantity, RuleCondition
from adaptive_runtime.policy.scoring import (
    ACCURACY_FIRST,
    CRITERIA,
    ENERGY_FIRST,
    LATENCY_FIRST,
    MOST_PREFERENCE,
    BatteryMu,
    Criterion,
    CriterionWeights,
    PairwisePreferences,
)

TOKEN = re.compile(r"->|→|<=|>=|≤|≥|[<>=:,%/]|-?\d+(?:\.\d+)?|°?[^\W\d_]+|\S")
SAME = {"→": "->", "≤": "<=", "≥": ">=", "°c": "c"}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PREFIX = re.compile(r"\s*policy\s*:", re.IGNORECASE)
SEPARATOR = re.compile(r"[;\n]")
IN_CONDITIONS = {"->", "<", "<=", ">", ">=", "charging"}
FIRST = {"accuracy": ACCURACY_FIRST, "energy": ENERGY_FIRST, "latency": LATENCY_FIRST}
QUANTITIES = ("battery", "memory", "load", "temperature")
SIGNS = ("<", "<=", ">", ">=")
ACTIONS = "accuracy first, energy first, latency first, mu = 0.3, mu by battery, weigh, at most, weights off"
FIELDS = {
    "counts": "what counts first",
    "energy_mj": "at most so many mJ",
    "memory_mib": "at most so many MiB",
    "adapts_weights": "weights off",
}
"""The fields of a rule that actions set, in words."""
COLDEST_C = -273.0
PERCENT = 100.0


def parse_rules(text: str) -> ChoiceRules:
    """Rules from a text. AdaptiveError in one line with the place, the text there, and the allowed texts.

    A leading `policy:` is left out.
    """
    parts = [rule.strip() for rule in SEPARATOR.split(PREFIX.sub("", text, count=1)) if rule.strip()]
    if not parts:
        allowed = "rules such as 'battery < 20% -> energy first; accuracy first'"
        raise AdaptiveError("policy", "is empty", allowed=allowed)
    rules = tuple(_RuleText(part, number).rule() for number, part in enumerate(parts, 1))
    for number, rule in enumerate(rules[:-1], 1):
        if not rule.any_of:
            got = f"is never reached: rule {number}, '{rule.text}', always holds"
            raise AdaptiveError(f"policy, rule {number + 1}", got, next_step="give it a condition, or put it last")
    return ChoiceRules("; ".join(parts), rules)


class _RuleText:
    """One rule, read from left to right as words, numbers and signs in lower case. number: of the rule, from 1."""

    def __init__(self, text: str, number: int) -> None:
        self._text, self._number, self._at = text, number, 0
        found = [(one.group().lower(), one.start() + 1) for one in TOKEN.finditer(text)]
        self._tokens = [(SAME.get(word, word), column) for word, column in found]

    def rule(self) -> ChoiceRule:
        """The whole rule. AdaptiveError for text that is none."""
        any_of: list[tuple[RuleCondition, ...]] = []
        if IN_CONDITIONS.intersection(word for word, _ in self._tokens):
            any_of.append(self._every())
            while self._take("or"):
                any_of.append(self._every())
            self._need("->")
        fields: dict[str, Any] = {}
        while not fields or self._take(","):
            name, value = self._action()
            if name in fields:
                self._refuse("once", f"{FIELDS[name]} is there twice")
            fields[name] = value
        self._need("")
        return ChoiceRule(self._text, tuple(any_of), **fields)

    def _ahead(self, count: int = 0) -> str:
        """The next token, or the token `count` positions after it; empty at the end of the rule."""
        at = self._at + count
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _take(self, *allowed: str) -> str | None:
        """The next token, if it is one of these."""
        found = self._ahead()
        if found not in allowed:
            return None
        self._at += 1
        return found

    def _need(self, *allowed: str) -> str:
        """Take the next token. AdaptiveError if it is none of these."""
        found = self._take(*allowed)
        return self._refuse(" or ".join(one or "the end of the rule" for one in allowed)) if found is None else found

    def _is_number(self, count: int = 0) -> bool:
        return NUMBER.fullmatch(self._ahead(count)) is not None

    def _number_in(self, least: float, most: float, unit: str = "") -> float:
        """Take a number within these limits; its unit follows. AdaptiveError for anything else."""
        allowed = f"a number from {least:g} to {most:g}" if most < inf else f"a number from {least:g} on"
        if not self._is_number() or not least <= float(self._ahead()) <= most:
            self._refuse(f"{allowed} {unit}".rstrip())
        self._at += 1
        return float(self._tokens[self._at - 1][0])

    def _share(self) -> float:
        value = self._number_in(0.0, PERCENT, "%")
        self._need("%")
        return value / PERCENT

    def _refuse(self, allowed: str, got: str | None = None) -> NoReturn:
        """Raise AdaptiveError: the next token is not allowed, or the text before it is wrong."""
        at_end = self._at >= len(self._tokens)
        column = len(self._text.rstrip()) + 1 if at_end else self._tokens[self._at][1]
        where = f"policy, rule {self._number}, column {column}"
        got = got or ("the rule ends" if at_end else f"'{self._ahead()}'")
        raise AdaptiveError(where, got, allowed=allowed, next_step="correct the rule")

    def _every(self) -> tuple[RuleCondition, ...]:
        found = [self._condition()]
        while self._take("and"):
            found.append(self._condition())
        return tuple(found)

    def _condition(self) -> RuleCondition:
        if self._take("charging"):
            return RuleCondition("charging", ">=", 1.0)
        if self._take("not"):
            self._need("charging")
            return RuleCondition("charging", "<=", 0.0)
        quantity = cast(Quantity | None, self._take(*QUANTITIES))
        if quantity is None:
            self._refuse(f"{', '.join(QUANTITIES)}, charging or not charging")
        sign = cast(ComparisonSign, self._need(*SIGNS))
        if quantity == "temperature":
            limit = self._number_in(COLDEST_C, inf, "C")
            self._need("c")
            return RuleCondition(quantity, sign, limit)
        if quantity == "memory":
            limit = self._number_in(0.0, inf, "MiB or %")
            if self._need("mib", "%") == "mib":
                return RuleCondition(quantity, sign, limit)
            return RuleCondition("memory share", sign, limit / PERCENT)
        return RuleCondition(quantity, sign, self._share())

    def _action(self) -> tuple[str, CriterionWeights | BatteryMu | float | bool]:
        """The field of the rule that an action sets, and its value."""
        if name := self._take(*FIRST):
            self._need("first")
            return "counts", FIRST[name]
        if self._take("mu"):
            by_battery = self._need("=", "by") == "by"
            return "counts", self._battery_mu() if by_battery else CriterionWeights.of_mu(self._number_in(0.0, 1.0))
        if self._take("weigh"):
            return "counts", self._preferences().weights
        if self._take("at"):
            self._need("most")
            limit = self._number_in(0.0, inf, "mJ or MiB")
            return ("energy_mj" if self._need("mj", "mib") == "mj" else "memory_mib"), limit
        if self._take("weights"):
            self._need("off")
            return "adapts_weights", False
        return self._refuse(ACTIONS)

    def _battery_mu(self) -> BatteryMu:
        self._need("battery")
        points = list[tuple[float, float]]()
        while self._is_number() or (points and self._is_number(1) and self._take(",")):
            charge = self._share()
            self._need(":")
            points.append((charge, self._number_in(0.0, 1.0)))
        return BatteryMu(tuple(points)) if points else BatteryMu()

    def _preferences(self) -> PairwisePreferences:
        given: dict[tuple[str, str], float] = {}
        while not given or (self._ahead(2) == ":" and self._take(",")):
            pair = self._need(*CRITERIA), self._need(":") and self._need(*CRITERIA)
            self._need("=")
            if len({*pair}) < 2 or pair in given:
                self._refuse("each pair of two criteria, once", f"'{':'.join(pair)}'")
            value = self._number_in(1 / MOST_PREFERENCE, MOST_PREFERENCE)
            value = value / self._number_in(1.0, MOST_PREFERENCE) if self._take("/") else value
            given |= {pair: value, pair[::-1]: 1 / value}
        criteria: tuple[Criterion, ...] = tuple(name for name in CRITERIA if any(name in pair for pair in given))
        for one, other in combinations(criteria, 2):
            if (one, other) not in given:
                got = f"'{self._text}' does not compare {one} and {other}"
                raise AdaptiveError("preferences", got, next_step=f"add {one}:{other} = 1 to 9, or 1/9 to 1")
        return PairwisePreferences(criteria, tuple(given[pair] for pair in combinations(criteria, 2)))

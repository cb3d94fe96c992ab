"""The text of rules as tokens, each with its position.

Rules from their text.

rules       rule, or several with `;` or ends of lines between them
rule        [condition ->] action, action, ...
condition   comparison and comparison or ...        (`and` binds closer)
comparison  battery < 20% | memory < 200 MiB | memory < 10% | load > 80% | temperature > 70 C | charging | not charging
action      accuracy first | energy first | latency first | mu = 0.3 | mu by battery [0%: 0.2, 100%: 1]
            | weigh accuracy:energy = 3, ... | at most 30 mJ | at most 200 MiB | weights off
"""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import NamedTuple, NoReturn

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


class RuleToken(NamedTuple):
    """A word, a number or a sign, in lower case; empty at the end of a rule. column: from 1, in the rule."""

    text: str
    column: int

    @property
    def is_number(self) -> bool:
        """Whether it is a number."""
        return NUMBER.fullmatch(self.text) is not None


class RuleTokens:
    """The tokens of one rule, read from left to right. number: of the rule, from 1."""

    def __init__(self, text: str, number: int) -> None:
        self._number, self._at = number, 0
        self._tokens = [RuleToken(SAME.get(word, word), at) for word, at in _words(text)]
        self._end = RuleToken("", len(text.rstrip()) + 1)

    @property
    def next(self) -> RuleToken:
        """The next token."""
        return self.ahead(0)

    def ahead(self, count: int) -> RuleToken:
        """The token that is `count` positions after the next one."""
        at = self._at + count
        return self._tokens[at] if at < len(self._tokens) else self._end

    @property
    def has_condition(self) -> bool:
        """Whether a condition precedes the actions."""
        words = {token.text for token in self._tokens}
        return bool(words & {"->", "<", "<=", ">", ">=", "charging"})

    def take(self, *allowed: str) -> str | None:
        """The next token, if it is one of these."""
        found = self.next.text
        if found not in allowed:
            return None
        self._at += 1
        return found

    def need(self, *allowed: str) -> str:
        """Take the next token. AdaptiveError if it is none of these."""
        found = self.take(*allowed)
        return self.refuse(" or ".join(one or "the end of the rule" for one in allowed)) if found is None else found

    def number(self, least: float, most: float, unit: str = "") -> float:
        """Take a number within these limits; its unit follows. AdaptiveError for anything else."""
        allowed = f"a number from {least:g} to {most:g}" if most < float("inf") else f"a number from {least:g} on"
        allowed += f" {unit}" if unit else ""
        token = self.next
        if not token.is_number or not least <= float(token.text) <= most:
            self.refuse(allowed)
        self._at += 1
        return float(token.text)

    def refuse(self, allowed: str, got: str | None = None) -> NoReturn:
        """Raise AdaptiveError: the next token is not allowed, or the text before it is wrong."""
        where = f"policy, rule {self._number}, column {self.next.column}"
        if got is None:
            got = f"'{self.next.text}'" if self.next.text else "the rule ends"
        raise AdaptiveError(where, got, allowed=allowed, next_step="correct the rule")


def rules_of(text: str) -> list[str]:
    """The rules of a text, separated by `;` or ends of lines. A leading `policy:` is left out."""
    return [rule.strip() for rule in SEPARATOR.split(PREFIX.sub("", text, count=1)) if rule.strip()]


def _words(text: str) -> list[tuple[str, int]]:
    return [(found.group().lower(), found.start() + 1) for found in TOKEN.finditer(text)]


FIRST = {"accuracy": ACCURACY_FIRST, "energy": ENERGY_FIRST, "latency": LATENCY_FIRST}
SIGNS: dict[str, ComparisonSign] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}
QUANTITIES: dict[str, Quantity] = {
    "battery": "battery",
    "memory": "memory",
    "load": "load",
    "temperature": "temperature",
}
COLDEST_C = -273.0
PERCENT = 100.0


def parse_rules(text: str) -> ChoiceRules:
    """Rules from a text. AdaptiveError in one line with the place, the text there, and the allowed texts."""
    parts = rules_of(text)
    if not parts:
        allowed = "rules such as 'battery < 20% -> energy first; accuracy first'"
        raise AdaptiveError("policy", "is empty", allowed=allowed)
    rules = tuple(_rule(part, number) for number, part in enumerate(parts, 1))
    for number, rule in enumerate(rules[:-1], 1):
        if not rule.any_of:
            got = f"is never reached: rule {number}, '{rule.text}', always holds"
            raise AdaptiveError(f"policy, rule {number + 1}", got, next_step="give it a condition, or put it last")
    return ChoiceRules("; ".join(parts), rules)


def _rule(text: str, number: int) -> ChoiceRule:
    tokens = RuleTokens(text, number)
    any_of: list[tuple[RuleCondition, ...]] = []
    if tokens.has_condition:
        any_of.append(_every(tokens))
        while tokens.take("or"):
            any_of.append(_every(tokens))
        tokens.need("->")
    rule = _Actions(ChoiceRule(text, tuple(any_of)), tokens).read()
    tokens.need("")
    return rule


def _every(tokens: RuleTokens) -> tuple[RuleCondition, ...]:
    found = [_condition(tokens)]
    while tokens.take("and"):
        found.append(_condition(tokens))
    return tuple(found)


def _condition(tokens: RuleTokens) -> RuleCondition:
    if tokens.take("charging"):
        return RuleCondition("charging", ">=", 1.0)
    if tokens.take("not"):
        tokens.need("charging")
        return RuleCondition("charging", "<=", 0.0)
    quantity = tokens.take(*QUANTITIES)
    if quantity is None:
        tokens.refuse(f"{', '.join(QUANTITIES)}, charging or not charging")
    sign = SIGNS[tokens.need(*SIGNS)]
    if quantity == "temperature":
        limit = tokens.number(COLDEST_C, inf, "C")
        tokens.need("c")
        return RuleCondition("temperature", sign, limit)
    if quantity == "memory":
        limit = tokens.number(0.0, inf, "MiB or %")
        if tokens.need("mib", "%") == "mib":
            return RuleCondition("memory", sign, limit)
        return RuleCondition("memory share", sign, limit / PERCENT)
    return RuleCondition(QUANTITIES[quantity], sign, _share(tokens))


def _share(tokens: RuleTokens) -> float:
    value = tokens.number(0.0, PERCENT, "%")
    tokens.need("%")
    return value / PERCENT


class _Actions:
    """The actions of a rule; each may occur once."""

    def __init__(self, rule: ChoiceRule, tokens: RuleTokens) -> None:
        self._rule, self._tokens = rule, tokens
        self._done: set[str] = set()

    def read(self) -> ChoiceRule:
        """Read all actions, separated by commas."""
        self._one()
        while self._tokens.take(","):
            self._one()
        return self._rule

    def _one(self) -> None:
        tokens = self._tokens
        readers: dict[str, Callable[[], None]] = {
            **dict.fromkeys(FIRST, self._first),
            "mu": self._mu,
            "weigh": self._weigh,
            "at": self._at_most,
            "weights": self._weights_off,
        }
        read = readers.get(tokens.next.text)
        if read is None:
            tokens.refuse(
                "accuracy first, energy first, latency first, mu = 0.3, mu by battery, weigh, at most, weights off"
            )
        read()

    def _first(self) -> None:
        name = self._tokens.need(*FIRST)
        self._counts(FIRST[name])
        self._tokens.need("first")

    def _mu(self) -> None:
        self._tokens.need("mu")
        if self._tokens.need("=", "by") == "=":
            self._counts(CriterionWeights.of_mu(self._tokens.number(0.0, 1.0)))
            return
        self._tokens.need("battery")
        points = list[tuple[float, float]]()
        while self._tokens.next.is_number or (points and self._tokens.ahead(1).is_number and self._tokens.take(",")):
            charge = _share(self._tokens)
            self._tokens.need(":")
            points.append((charge, self._tokens.number(0.0, 1.0)))
        self._counts(BatteryMu(tuple(points)) if points else BatteryMu())

    def _weigh(self) -> None:
        self._tokens.need("weigh")
        given: dict[tuple[str, str], float] = {}
        while not given or (self._tokens.ahead(2).text == ":" and self._tokens.take(",")):
            pair = self._tokens.need(*CRITERIA), self._tokens.need(":") and self._tokens.need(*CRITERIA)
            self._tokens.need("=")
            if len({*pair}) < 2 or pair in given or pair[::-1] in given:
                self._tokens.refuse("each pair of two criteria, once", f"'{':'.join(pair)}'")
            given[pair] = self._ratio()
        named = {name for pair in given for name in pair}
        criteria: tuple[Criterion, ...] = tuple(name for name in CRITERIA if name in named)
        upper = []
        for one, other in combinations(criteria, 2):
            value = given.get((one, other))
            turned = given.get((other, one))
            if value is None and turned is None:
                got = f"'{self._rule.text}' does not compare {one} and {other}"
                raise AdaptiveError("preferences", got, next_step=f"add {one}:{other} = 1 to 9, or 1/9 to 1")
            upper.append(1 / turned if value is None and turned is not None else value or 1.0)
        self._counts(PairwisePreferences(criteria, tuple(upper)).weights)

    def _ratio(self) -> float:
        value = self._tokens.number(1 / MOST_PREFERENCE, MOST_PREFERENCE)
        return value / self._tokens.number(1.0, MOST_PREFERENCE) if self._tokens.take("/") else value

    def _at_most(self) -> None:
        self._tokens.need("at")
        self._tokens.need("most")
        limit = self._tokens.number(0.0, inf, "mJ or MiB")
        if self._tokens.need("mj", "mib") == "mj":
            self._once("at most so many mJ")
            self._rule = replace(self._rule, energy_mj=limit)
        else:
            self._once("at most so many MiB")
            self._rule = replace(self._rule, memory_mib=limit)

    def _weights_off(self) -> None:
        self._tokens.need("weights")
        self._tokens.need("off")
        self._once("weights off")
        self._rule = replace(self._rule, adapts_weights=False)

    def _counts(self, counts: CriterionWeights | BatteryMu) -> None:
        self._once("what counts first")
        self._rule = replace(self._rule, counts=counts)

    def _once(self, what: str) -> None:
        if what in self._done:
            self._tokens.refuse("once", f"{what} is there twice")
        self._done.add(what)

"""The text of rules as tokens, each with its position."""

import re
from typing import NamedTuple, NoReturn

from adaptive_runtime.base.errors import AdaptiveError

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

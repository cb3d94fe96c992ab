"""A user's wishes for a space: selectors of variable names, and choices for the variables that match."""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from tailor_ir.errors import SpaceError
from tailor_ir.spaces.variables import Choice

AUTO, FROZEN = "auto", "frozen"

SpaceSpec = Mapping[str, Sequence[Choice] | str]
"""Selector -> choices, "auto" (the proposed ones) or "frozen" (as the network is). Later selectors override earlier ones.

Selectors are patterns of variable names (`stage.*.depth`); the beginning of names (`stage.1`) stands for all of them.
`block[FFN].expand_ratio` matches by template, and `block[/layer1/*].expand_ratio` by the names of the block's nodes; both may
follow a stage (`stage.2.block[MBConv].…`).
"""

_BRACKETS = re.compile(r"(?P<before>.*?)block\[(?P<what>[^\]]+)\]\.(?P<attribute>\w+)$")
_NAME = re.compile(r"(?P<before>.*?)block\.\d+\.(?P<attribute>\w+)$")


class Selectors:
    """The selectors, and which of them have matched something."""

    def __init__(self, spec: SpaceSpec | None) -> None:
        self.spec = spec
        self.names: list[str] = []
        self._matched: set[str] = set()

    def choices(
        self, name: str, block_kinds: Collection[str] = (), nodes: Collection[str] = ()
    ) -> Sequence[Choice] | None:
        """Choices for a variable: the user's, () for the proposed ones, None when it is to stay as it is.

        block_kinds: kind and part of its block. nodes: names of its block's nodes.
        """
        self.names.append(name)
        if self.spec is None:
            return ()
        selectors = [selector for selector in self.spec if _matches(selector, name, block_kinds, nodes)]
        self._matched.update(selectors)
        if not selectors:
            return None
        choices = self.spec[selectors[-1]]
        if choices == FROZEN:
            return None
        if isinstance(choices, str):
            if choices != AUTO:
                raise SpaceError(
                    f"space: {selectors[-1]}={choices}; allowed: a list of choices, '{AUTO}' or '{FROZEN}'"
                )
            return ()
        if not choices or not all(isinstance(c, int | float) for c in choices):
            raise SpaceError(f"space: {selectors[-1]}={list(choices)}; allowed: a list of numbers")
        return tuple(sorted(set(choices)))

    def is_named(self, name: str) -> bool:
        """Whether a selector names the variable itself, not as one of several."""
        return name in (self.spec or {})

    def refuse_unmatched(self, dropped: Sequence[str]) -> None:
        """SpaceError for a selector that matches nothing in this network."""
        for selector in self.spec or {}:
            if selector not in self._matched:
                why = next((f" ({d})" for d in dropped if d.split(":")[0] == selector), "")
                raise SpaceError(
                    f"space: no variable matches '{selector}'{why}; allowed: {', '.join(self.names) or 'none'}; "
                    "use * to match several"
                )


def _matches(selector: str, name: str, block_kinds: Collection[str], nodes: Collection[str]) -> bool:
    bracket = _BRACKETS.match(selector)
    if bracket is None:
        return fnmatchcase(name, selector) or fnmatchcase(name, f"{selector}.*")
    place = _NAME.match(name)
    if place is None or place["attribute"] != bracket["attribute"]:
        return False
    if bracket["before"] and not fnmatchcase(place["before"], bracket["before"]):
        return False
    what = bracket["what"]
    return what in block_kinds or any(fnmatchcase(node, what) for node in nodes)

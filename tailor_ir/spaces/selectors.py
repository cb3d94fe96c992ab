"""A user's request for a space (selectors of variable names, and choices for matching variables), and its variables.

Facts about each variable are for display.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tailor_ir.errors import SpaceError

NumberChoice = int | float
Choice = NumberChoice | str
Config = dict[str, Choice]


def choice_text(choice: Choice) -> str:
    """A choice as text for people: 1 also for 1.0."""
    return choice if isinstance(choice, str) else f"{choice:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One choosable property. `choices` ascend (names: in cost); the last is that of the original network."""

    name: str
    kind: str  # name of its record in `spaces.kinds`
    scope: str  # "global" | "stage" | "block"
    choices: tuple[Choice, ...]

    @property
    def default(self) -> Choice:
        """The choice of the largest SubNet."""
        return self.choices[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableInfo:
    """The effects of one variable, from its largest to its smallest choice, with all others at their largest.

    nodes: names of the nodes that it resizes or removes, in order. axes: the axes that it resizes or removes: channel groups
    ("C3"), "H" and "W" of the input, other axes by initial and number. parameters_saved: trainable parameters. macs_saved: of
    one sample.
    """

    name: str
    kind: str
    scope: str
    choices: tuple[Choice, ...]
    nodes: tuple[str, ...]
    axes: tuple[str, ...]
    parameters_saved: int
    macs_saved: int

    @property
    def first_node(self) -> str:
        """Name of the first node that it affects."""
        return self.nodes[0]

    @property
    def last_node(self) -> str:
        """Name of the last node that it affects."""
        return self.nodes[-1]


AUTO, FROZEN = "auto", "frozen"
ALTERNATIVES, EVERY_BLOCK = "alternatives", "stage.*.block.*.block"
"""A short name for the selector of the alternatives of all blocks."""
EXIT, EXIT_HEAD = "exit", "exit.head"
"""The selectors of the places of exits, and of the kind of their heads."""

OF_SEVERAL = ("depth", "width_mult", "growth_mult", "expand_ratio", "heads", "v_scale", "kernel_size", "block")
"""Kinds with several variables per network; the records of all kinds are in `tailor_ir.spaces.kinds`."""

SpaceSpec = Mapping[str, Sequence[Choice] | str]
"""Selector -> choices, "auto" (the proposed ones) or "frozen" (unchanged). Later selectors override earlier ones.

Selectors are patterns of variable names (`stage.*.depth`); a prefix (`stage.1`) matches all names that begin with it.
`block[FFN].expand_ratio` matches by template, and `block[/layer1/*].expand_ratio` by the names of the block's nodes; both may
follow a stage (`stage.2.block[MBConv].…`). Alternatives to blocks are only added if a selector requests them by `….block`; its
choices are names of kinds or of single alternatives. `alternatives` requests them at every block. Exits are only added if
`exits` (or `exit`) requests them; its choices are places, by name or pattern. `exits.head`: the kind of heads.
"""

_ALTERNATIVES = re.compile(r"(^\*|block\.[^.]+|block\[[^\]]+\])\.block$")
_SHORT = {ALTERNATIVES: EVERY_BLOCK, "exits": EXIT, "exits.places": EXIT, "exits.head": EXIT_HEAD}
_BRACKETS = re.compile(r"(?P<before>.*?)block\[(?P<what>[^\]]+)\]\.(?P<attribute>\w+)$")
_NAME = re.compile(r"(?P<before>.*?)block\.\d+\.(?P<attribute>\w+)$")


def asks_for_exits(spec: SpaceSpec | None) -> bool:
    """Whether a space requests exits, at any place."""
    return Selectors(spec).exits() is not None


class Selectors:
    """The selectors, and a record of which of them have matched something."""

    def __init__(self, spec: SpaceSpec | None) -> None:
        self.spec = None if spec is None else {_SHORT.get(selector, selector): spec[selector] for selector in spec}
        self.names: list[str] = []
        self._matched: set[str] = set()

    def choices(
        self, name: str, block_kinds: Collection[str] = (), nodes: Collection[str] = ()
    ) -> Sequence[NumberChoice] | None:
        """Choices for a variable: the user's, () for the proposed ones, None if the variable stays fixed.

        block_kinds: kind and part of its block. nodes: names of its block's nodes.
        """
        self.names.append(name)
        if self.spec is None:
            return ()
        others = (selector for selector in self.spec if not _of_blocks(selector) and selector not in (EXIT, EXIT_HEAD))
        selectors = [selector for selector in others if _matches(selector, name, block_kinds, nodes)]
        self._matched.update(selectors)
        if not selectors:
            return None
        choices = self._listed(selectors[-1])
        numbers = [choice for choice in choices or () if not isinstance(choice, str)]
        if choices and len(numbers) < len(choices):
            raise SpaceError(f"space.{selectors[-1]}: got {list(choices)}; allowed: a list of numbers")
        return None if choices is None else tuple(sorted(set(numbers)))

    def _listed(self, selector: str) -> Sequence[Choice] | None:
        """The choices of a selector: () for the proposed ones, None for "frozen"."""
        choices = (self.spec or {})[selector]
        if choices == FROZEN:
            return None
        if choices == AUTO:
            return ()
        if isinstance(choices, str) or not choices:
            raise SpaceError(f"space: {selector}={choices}; allowed: a list of choices, '{AUTO}' or '{FROZEN}'")
        return choices

    @property
    def ask_for_alternatives(self) -> bool:
        """Whether alternatives are requested at any block."""
        return any(_of_blocks(selector) for selector in self.spec or {})

    def names_alternative(self, variable: str | None, *names: str) -> bool:
        """Whether one of some alternatives is requested by its name, for one variable or (None) for any."""
        spec = self.spec or {}
        own = [selector for selector in spec if (variable is None and _of_blocks(selector)) or selector == variable]
        asked = [choices for choices in map(spec.__getitem__, own) if not isinstance(choices, str)]
        return any(name in choices for choices in asked for name in names)

    def alternatives(
        self, name: str, block_kinds: Collection[str] = (), nodes: Collection[str] = ()
    ) -> Sequence[str] | None:
        """Names of alternatives for the variable of a block: () for all, None for none; arguments as in `choices`."""
        self.names.append(name)
        asking = [selector for selector in self.spec or {} if _of_blocks(selector)]
        selectors = [selector for selector in asking if _matches(selector, name, block_kinds, nodes)]
        self._matched.update(selectors)
        choices = self._listed(selectors[-1]) if selectors else None
        return None if choices is None else tuple(map(str, choices))

    def exits(self) -> Sequence[str] | None:
        """Names or patterns of places of exits: () for a few proposed ones, None for no exits."""
        spec = self.spec or {}
        own = {EXIT, EXIT_HEAD} & spec.keys()
        if not own:
            return None
        self.names.append(EXIT)
        self._matched.update(own)
        places = self._listed(EXIT) if EXIT in own else ()
        return None if places is None else tuple(map(str, places))

    def exit_head(self) -> str | None:
        """The requested kind of the heads of exits; None if none is requested."""
        head = (self.spec or {}).get(EXIT_HEAD)
        return head if head is None or isinstance(head, str) else ", ".join(map(str, head))

    def is_named(self, name: str) -> bool:
        """Whether a selector is exactly the variable's name, not a pattern."""
        return name in (self.spec or {})

    def refuse_unmatched(self, dropped: Sequence[str]) -> None:
        """Raise SpaceError for a selector that matches nothing; "auto" alternatives at all blocks may match nothing."""
        spec = self.spec or {}
        for selector in spec:
            if selector not in self._matched and (selector, spec[selector]) != (EVERY_BLOCK, AUTO):
                why = next((f" ({d})" for d in dropped if d.split(":")[0] == selector), "")
                raise SpaceError(
                    f"space: no variable matches '{selector}'{why}; allowed: {', '.join(self.names) or 'none'}; "
                    "use * to match several"
                )


def _of_blocks(selector: str) -> bool:
    """Whether a selector is for variables that choose alternatives."""
    return _ALTERNATIVES.search(selector) is not None


def matches_block(selector: str, name: str, block: str, nodes: Collection[str]) -> bool:
    """Whether a selector without a kind of variables (`stage.2.block[MBConv]`) matches a block, by its name, kind and nodes."""
    return _matches(f"{selector}.{EXIT}", f"{name}.{EXIT}", {block}, nodes)


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

"""The record that a kind of alternatives fills in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailor_ir.alternatives.sketch import Sketch

Write = Callable[[Sketch, float], str]
"""Writes the alternative into a sketch; returns the value that replaces the site's exit. NotHere if it is illegal there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeKind:
    """One kind of alternatives.

    choices: names for configs, each with its number: blocks that it replaces, the share that it keeps … blocks: number of
    consecutive blocks that a choice replaces, by its number.
    """

    name: str
    choices: Mapping[str, float]
    write: Write
    blocks: Callable[[float], int] = lambda number: 1

"""The record that a kind of alternatives fills in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailor_ir.alternatives.sketch import Sketch

Write = Callable[[Sketch, float], str]
"""Writes the alternative into a sketch; gives the value that stands for the site's exit. NotHere where it is not legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeKind:
    """One kind of alternatives.

    choices: names that configs know it by, with the number of each: blocks that it replaces, the share that it keeps …
    blocks: how many blocks in a row one of the choices replaces, by its number.
    """

    name: str
    choices: Mapping[str, float]
    write: Write
    blocks: Callable[[float], int] = lambda number: 1

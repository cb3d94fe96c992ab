"""The record of a recipe."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzzing.drafts import Draft, Value

Make = Callable[[Draft], Value]


@dataclass(frozen=True, slots=True)
class Recipe:
    """make: adds nodes to a draft and gives the last value. gives: operators that the compiled network can have by it.

    since: the least opset. share: how likely it is among the others.
    """

    name: str
    make: Make
    gives: tuple[str, ...]
    since: int = 13
    share: float = 1.0

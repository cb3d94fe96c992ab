"""What may be left in an output folder, by kind, and what is to become of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

LeftoverKind = Literal["unfinished", "damaged", "stages", "contents"]
"""Stages that killed runs were at, what was set aside, complete stages, and contents of files at a URL."""
LeftoverState = Literal["used", "recent", "old", "at work", "removed"]
"""Referred to; younger than asked for; can be removed; of a process that is at it; gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing. name: its path in the output folder, or below the URL. size: bytes.

    age_s: since it was written last [s]; None: not asked, since it is used.
    """

    kind: LeftoverKind
    name: str
    size: int
    age_s: float | None
    state: LeftoverState

    def now(self, state: LeftoverState) -> "Leftover":
        """The same in another state."""
        return replace(self, state=state)


def by_age(age_s: float, older_than_s: float) -> LeftoverState:
    """The state of what nothing refers to."""
    return "old" if age_s > older_than_s else "recent"


class OutputCleaner(Protocol):
    """Cleans one output folder."""

    def look(self) -> list[Leftover]:
        """What there is. Nothing is written. UserError: it is no output folder, or cannot be read."""

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove what is old and what nobody works at; what there was. say: hears whom it waits for, or leaves alone.

        UserError: as above, or something cannot be removed.
        """

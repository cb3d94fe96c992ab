"""Leftovers in an output folder: their kinds and states."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

LeftoverKind = Literal["unfinished", "damaged", "stages", "contents"]
"""Unfinished stages of killed runs, damaged folders set aside, complete stages, and contents of files at a URL."""
LeftoverState = Literal["used", "recent", "old", "at work", "removed"]
"""Referred to; younger than the limit; removable; in use by a process; gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One leftover. name: its path in the output folder, or below the URL. size: bytes.

    age_s: time since the last write [s]; None if not determined, because it is in use.
    """

    kind: LeftoverKind
    name: str
    size: int
    age_s: float | None
    state: LeftoverState

    def now(self, state: LeftoverState) -> "Leftover":
        """The same leftover in another state."""
        return replace(self, state=state)


def by_age(age_s: float, older_than_s: float) -> LeftoverState:
    """The state of an unreferenced leftover."""
    return "old" if age_s > older_than_s else "recent"


class OutputCleaner(Protocol):
    """Cleans one output folder."""

    def look(self) -> list[Leftover]:
        """The current leftovers. Nothing is written. UserError if it is no output folder, or cannot be read."""

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove leftovers that are old and that nobody works on, and return all with their new states.

        say: is called with holders that it waits for, and with stages that it skips. UserError: as above, or if a removal
        fails.
        """

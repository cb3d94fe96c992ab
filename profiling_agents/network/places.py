"""Places of connections: for those that have shown a token, and a few, for a short time, for those that have not.

Whoever has no token can open as many connections as he likes. They take no place of those who have one: beyond their own few
places, the oldest that says nothing makes room for the newest.
"""

from dataclasses import dataclass, field
from typing import Protocol

HEAD_LIMIT_S = 5.0
"""A connection that brings no whole head of a request, no hello or no end of a TLS handshake for so long is closed."""
FEWEST_STRANGERS = 32
SHARE_OF_STRANGERS = 4


class Visitor(Protocol):
    """A connection, as far as its place matters."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing that it has asked is being answered."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


@dataclass(slots=True)
class Places:
    """known: connections that have shown a token, at most; as many more as a fourth of that, 32 at least, have not yet."""

    known: int
    _known: set[Visitor] = field(default_factory=set)
    _strangers: dict[Visitor, None] = field(default_factory=dict)

    @property
    def strangers(self) -> int:
        """The most connections without a token."""
        return max(FEWEST_STRANGERS, self.known // SHARE_OF_STRANGERS)

    def enter(self, one: Visitor) -> None:
        """A new connection. Where there are too many without a token, the oldest silent one is closed, else this one."""
        self._strangers[one] = None
        if len(self._strangers) > self.strangers:
            oldest = next(other for other in self._strangers if other.is_silent or other is one)
            del self._strangers[oldest]
            oldest.drop()

    def admit(self, one: Visitor) -> bool:
        """A connection has shown a token; False where all places are taken."""
        if one in self._known:
            return True
        if len(self._known) >= self.known:
            return False
        self._strangers.pop(one, None)
        self._known.add(one)
        return True

    def leave(self, one: Visitor) -> None:
        """A connection has ended."""
        self._strangers.pop(one, None)
        self._known.discard(one)

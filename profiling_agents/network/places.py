"""Places of connections: for clients that have shown a token, and a few, for a short time, for those that have not.

Anybody can open any number of connections without a token. They take no place of a client with one: beyond their own few
places, the oldest silent connection makes room for the newest.
"""

from dataclasses import dataclass, field
from typing import Protocol

HEAD_LIMIT_S = 5.0
"""A connection that brings no whole head of a request, no hello or no end of a TLS handshake for this long is closed."""
FEWEST_STRANGERS = 32
SHARE_OF_STRANGERS = 4


class Visitor(Protocol):
    """A connection, as `Places` sees it."""

    @property
    def is_silent(self) -> bool:
        """Whether none of its requests is being answered."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


@dataclass(slots=True)
class Places:
    """known: limit of connections that have shown a token; those without one may be a fourth of that, but at least 32."""

    known: int
    _known: set[Visitor] = field(default_factory=set)
    _strangers: dict[Visitor, None] = field(default_factory=dict)

    @property
    def strangers(self) -> int:
        """The most connections without a token."""
        return max(FEWEST_STRANGERS, self.known // SHARE_OF_STRANGERS)

    def enter(self, one: Visitor) -> None:
        """Add a new connection. If too many have no token, close the oldest silent one, else this one."""
        self._strangers[one] = None
        if len(self._strangers) > self.strangers:
            oldest = next(other for other in self._strangers if other.is_silent or other is one)
            del self._strangers[oldest]
            oldest.drop()

    def admit(self, one: Visitor) -> bool:
        """Record that a connection has shown a token; False if all places are taken."""
        if one in self._known:
            return True
        if len(self._known) >= self.known:
            return False
        self._strangers.pop(one, None)
        self._known.add(one)
        return True

    def leave(self, one: Visitor) -> None:
        """Remove a connection that has ended."""
        self._strangers.pop(one, None)
        self._known.discard(one)

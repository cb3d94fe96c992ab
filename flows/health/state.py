"""What is known of a service."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """A service at an address. said: what it is like, or what is wrong. next_step: what to do then."""

    service: str
    where: str
    well: bool
    said: str
    next_step: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `--json` writes it."""
        return {name: getattr(self, name) for name in ("service", "where", "well", "said", "next_step")}


def without_password(url: str) -> str:
    """An address for people."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = parts.username
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host))

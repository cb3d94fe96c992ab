"""What is known of a service."""

from dataclasses import dataclass
from typing import Any


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

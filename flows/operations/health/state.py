"""The health of a service."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceHealth:
    """A service at an address. said: its condition or problem. next_step: the remedy for a problem."""

    service: str
    where: str
    well: bool
    said: str
    next_step: str = ""

    def to_json(self) -> dict[str, Any]:
        """The JSON of `--json`."""
        return {name: getattr(self, name) for name in ("service", "where", "well", "said", "next_step")}

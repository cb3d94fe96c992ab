"""Architectures as short text for people. Nothing here is escaped for HTML."""

from collections.abc import Mapping, Sequence
from typing import Any


def architecture(config: Mapping[str, float], variables: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a SubNet changes against the largest one, a line per scope: `stage2: depth -1, width_mult 0.8`."""
    lines: dict[str, list[str]] = {}
    for variable in variables:
        choice = config.get(variable["name"], variable["default"])
        if choice == variable["default"] and variable["kind"] != "resolution":
            continue
        scope, _, kind = variable["name"].rpartition(".")
        lines.setdefault(scope, []).append(f"{kind} {choice:g}")
    return [f"{scope}: {', '.join(parts)}" if scope else ", ".join(parts) for scope, parts in lines.items()]

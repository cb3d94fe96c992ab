"""Numbers and architectures as short text for people. Nothing here is escaped for HTML."""

from collections.abc import Mapping, Sequence
from typing import Any


def count(value: float | str) -> str:
    """A big count: exact below a million, then scientific. Takes the text of integers beyond 2**53."""
    number = int(value)
    if number < 1_000_000:
        return f"{number:,}"
    text = str(number)
    return f"{text[0]}.{text[1:3]}e{len(text) - 1}"


def millions(value: float) -> str:
    """A count in millions, three digits."""
    return f"{value / 1e6:.3g} M"


def milliseconds(value: float | None) -> str:
    """Latency with four digits, microseconds kept."""
    return "–" if value is None else f"{value:.4g} ms"


def percent(share: float | None) -> str:
    """A fraction in percent."""
    return "–" if share is None else f"{100 * share:.1f} %"


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

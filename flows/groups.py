"""The configuration groups shipped in `conf/`, and the nearest name to a mistyped one."""

import difflib
from collections.abc import Iterable
from pathlib import Path

import conf


def config_groups(own: Path | None = None) -> dict[str, list[str]]:
    """Group name -> its options, with those of the user's own folder (`--config-dir`)."""
    options: dict[str, set[str]] = {}
    for root in (Path(conf.__path__[0]), *([own] if own else [])):
        for file in root.glob("*/*.yaml"):
            options.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(options[group]) for group in sorted(options)}


def nearest(name: str, options: Iterable[str]) -> str:
    """`did you mean '…'?` or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""

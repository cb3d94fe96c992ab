"""The configuration groups shipped in `conf/`, and the nearest name to a mistyped one."""

import difflib
from collections.abc import Iterable
from pathlib import Path

import conf


def config_groups() -> dict[str, list[str]]:
    """Group name -> its options."""
    folders = sorted(folder for folder in Path(conf.__path__[0]).iterdir() if folder.is_dir())
    options = {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}
    return {group: names for group, names in options.items() if names}


def nearest(name: str, options: Iterable[str]) -> str:
    """`did you mean '…'?` or an empty string."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""

"""Quarantine: damaged files are moved aside for inspection before new files replace them."""

from itertools import count
from pathlib import Path

WORKED_IN = ".partial"


def set_aside(path: Path, folder: Path) -> Path:
    """Move a damaged file or folder into quarantine; returns its new path.

    folder: the stage's folder, under its final or its `.partial` name. The folder itself moves to `KEY.damaged-N`, one of its
    files to `KEY.damaged-N/FILE`.
    """
    key = folder.name.removesuffix(WORKED_IN)
    places = (folder.with_name(f"{key}.damaged-{number}") for number in count(1))
    place = next(place for place in places if not place.exists())
    if path != folder:
        place.mkdir(parents=True)
        place = place / path.name
    path.rename(place)
    return place

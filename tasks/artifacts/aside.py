"""Setting damaged files aside, for people to look at, before new files take their places."""

from itertools import count
from pathlib import Path

WORKED_IN = ".partial"


def set_aside(path: Path, folder: Path) -> Path:
    """Move a damaged file or folder out of the way; where it is then.

    folder: the stage's, under its final name or the one it is worked in. It goes aside itself, as `KEY.damaged-N`, or a
    file of it does, as `KEY.damaged-N/FILE`.
    """
    key = folder.name.removesuffix(WORKED_IN)
    places = (folder.with_name(f"{key}.damaged-{number}") for number in count(1))
    place = next(place for place in places if not place.exists())
    if path != folder:
        place.mkdir(parents=True)
        place = place / path.name
    path.rename(place)
    return place

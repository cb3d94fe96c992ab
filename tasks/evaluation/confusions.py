"""Which classes a network takes for which, of samples of the test split. Legend: K classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tasks.artifacts import append_line, read_lines
from tasks.problems import Tallied

CONFUSIONS_FILE = "confusions.jsonl"
MOST_CLASSES = 64
"""With more a picture shows nothing."""
BASE = "base"
"""What a line calls the network that a SuperNet is made of, which is no SubNet."""


class Confusions(TypedDict):
    """A line of the file. confusion: samples by class (rows) and answer (columns), (K, K). digest: of a SubNet, or `BASE`."""

    digest: str
    classes: list[str]
    confusion: list[list[int]]


def append_confusions(file: Path, digest: str, classes: Sequence[str], found: Tallied) -> None:
    """A line for a network; none where the learning problem knows no confusions, or where there are too many classes."""
    if found.confusion_KK is not None and len(classes) <= MOST_CLASSES:
        line = Confusions(digest=digest, classes=list(classes), confusion=found.confusion_KK.tolist())
        append_line(file, line)


def read_confusions(file: Path) -> dict[str, Confusions]:
    """By digest, as they were written last; nothing where there is no file."""
    return {line["digest"]: line for line in read_lines(file)}

"""Confusions between classes by a network, on samples of the test split. Legend: K classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tasks.base.artifacts import append_line, read_lines
from tasks.data.problems import Tallied

CONFUSIONS_FILE = "confusions.jsonl"
MOST_CLASSES = 64
"""With more classes a picture shows nothing."""
BASE = "base"
"""Name in a line for the network that a SuperNet is made of, which is not a SubNet."""


class Confusions(TypedDict):
    """A line of the file. confusion: samples by class (rows) and answer (columns), (K, K). digest: of a SubNet, or `BASE`."""

    digest: str
    classes: list[str]
    confusion: list[list[int]]


def confusion_of(found: Tallied) -> list[list[int]] | None:
    """Samples by class and answer (K, K); None if the learning problem has no confusions, or there are too many classes."""
    if found.confusion_KK is None or len(found.confusion_KK) > MOST_CLASSES:
        return None
    return found.confusion_KK.tolist()


def append_confusions(file: Path, digest: str, classes: Sequence[str], confusion: list[list[int]] | None) -> None:
    """Append a line for a network with confusions of `confusion_of`; nothing for None."""
    if confusion is not None:
        append_line(file, Confusions(digest=digest, classes=list(classes), confusion=confusion))


def read_confusions(file: Path) -> dict[str, Confusions]:
    """The last line of each network, by digest; {} without a file."""
    return {line["digest"]: line for line in read_lines(file)}

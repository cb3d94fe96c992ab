"""Annotations of images in one form for all file formats; errors are one line, skipped boxes are counted."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.base.errors import UserError

Box = tuple[float, float, float, float]
WITHOUT_AREA, OUTSIDE, CUT = (
    "without area, left out",
    "outside of their image, left out",
    "cut at the edge of their image",
)
SLACK_PX = 1.0
"""Distance by which rounding may move a box out of its image [px] before it counts as cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedImage:
    """An image file, its size [px] in the annotations, and the boxes (x0, y0, x1, y1) of its objects, as shares of the image.

    where: the row of the annotations, for messages.
    """

    file: Path
    where: str
    width: int
    height: int
    names: tuple[str, ...]
    boxes: tuple[Box, ...]


@dataclass(slots=True)
class UnusedBoxes:
    """Boxes that are left out or changed: their counts, and the first place, by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, where: str) -> None:
        """Count a box, for a reason in words."""
        self.counts[reason] += 1
        self.first.setdefault(reason, where)

    def told(self) -> tuple[str, ...]:
        """A line for each reason."""
        return tuple(
            f"data: {count} {'box' if count == 1 else 'boxes'} {reason} (first: {self.first[reason]})"
            for reason, count in self.counts.items()
        )


def sized(where: str, width: object, height: object) -> tuple[int, int]:
    """The size of an image [px]. UserError if it is invalid."""
    sides = [_number(where, name, value) for name, value in (("width", width), ("height", height))]
    if min(sides) < 1 or any(side % 1 for side in sides):
        raise UserError(where, f"an image of {width} x {height} pixels", allowed="whole numbers from 1")
    return int(sides[0]), int(sides[1])


def share_of(where: str, corners: Sequence[object], size: tuple[int, int], left_out: UnusedBoxes) -> Box | None:
    """A box (x0, y0, x1, y1) [px] as shares of its image, cut at the image's edges; None if nothing of it is left.

    size: (width, height). UserError for values that are not numbers.
    """
    names = ("left", "top", "right", "bottom")
    edges = [_number(where, name, value) for name, value in zip(names, corners, strict=True)]
    x0, y0, x1, y1 = edges
    if x1 <= x0 or y1 <= y0:
        left_out.add(WITHOUT_AREA, where)
        return None
    limits = (size[0], size[1]) * 2
    cut = [min(max(edge, 0.0), float(limit)) for edge, limit in zip(edges, limits, strict=True)]
    if cut[2] <= cut[0] or cut[3] <= cut[1]:
        left_out.add(OUTSIDE, where)
        return None
    if max(abs(edge - inside) for edge, inside in zip(edges, cut, strict=True)) > SLACK_PX:
        left_out.add(CUT, where)
    return cut[0] / size[0], cut[1] / size[1], cut[2] / size[0], cut[3] / size[1]


def _number(where: str, name: str, value: object) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UserError(where, f"{name} is {value!r}", allowed="a number", next_step="mend the annotation")
    return found

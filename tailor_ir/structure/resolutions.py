"""Legal input resolutions of a network, or lengths of its token sequences: every side and axis is an integer, every position is
kept, and branches that meet have equal sizes.
"""

from collections.abc import Sequence
from math import gcd, lcm

from tailor_ir.axes import Axis, Scaled, Sizes, Spatial, Window
from tailor_ir.structure.propagation import AxisMap

PROPOSED_SHARES = (0.5, 0.75)  # of the network's own resolution, which is always proposed, too
NEAR_SHARE = 0.05  # largest distance of a rounder resolution from a proposed share, as a share of the network's own
ROUNDEST = 32  # a resolution is rounder the larger the power of two (up to this) that divides it
SMALLEST_PART = 0.9  # of the smallest share; legal resolutions below it are not proposed


class Resolutions:
    """Legality of input sizes for one network. A size is the first side of the input; the others keep their ratio to it."""

    def __init__(self, axis_map: AxisMap, sides: Sequence[int]) -> None:
        """sides: the network's own input size: height and width, or the length of its token sequences."""
        self.base, self._sides = sides[0], tuple(sides)
        self._step = lcm(*(self.base // gcd(self.base, side) for side in sides))  # its multiples have integer sides
        self._pairs = axis_map.equal_sizes
        found = {axis for axes in (*axis_map.axes.values(), axis_map.needed) for axis in axes if axis.spatial}
        self._axes = _with_parts(found)

    def problem(self, size: int) -> str:
        """Why an input of this size is illegal; "" if it is legal."""
        if size == self.base:
            return ""
        if size > self.base:
            return f"larger than the network's own, {self.base}"
        if size % self._step:
            ratio = " : ".join(map(str, self._sides))
            return f"no whole numbers of pixels have the ratio {ratio}; multiples of {self._step} have"
        sides = sides_of(size, self._sides)
        patches = self._patches()
        for index, side in enumerate(sides):
            patch = patches.get(index, 1)
            if side % patch:
                return f"not a multiple of the patch size {patch}"
        sizes = Sizes(groups={}, spatial=sides, batch=1)
        for axis in self._axes:
            if isinstance(axis, Scaled) and sizes(axis.source) * axis.numerator % axis.denominator:
                return f"{sizes(axis.source)} positions in some layer cannot be split by {axis.denominator}"
            if sizes(axis) < 1:
                return "leaves no position in some layer"
        if any(sizes(a) != sizes(b) for a, b in self._pairs):
            return "two branches would differ in size"
        return ""

    def proposed(self, shares: Sequence[float] = PROPOSED_SHARES) -> list[int]:
        """Legal resolutions near some shares of the network's own, ascending; rounder numbers are preferred."""
        patches = self._patches()
        smallest = max(patches.get(0, 1), round(SMALLEST_PART * min(shares) * self.base))
        legal = [s for s in range(self.base, smallest - 1, -1) if s % self._step == 0 and not self.problem(s)]
        near = NEAR_SHARE * self.base

        def rank(size: int, wanted: float) -> tuple[float, int, float]:
            away = abs(size - wanted)
            return (away, 0, 0) if away > near else (near, -gcd(size, ROUNDEST), away)

        chosen = {min(legal, key=lambda s: rank(s, share * self.base)) for share in shares if legal}
        return sorted(chosen | {self.base})

    def _patches(self) -> dict[int, int]:
        """Side -> stride of its windows that do not overlap (patches); sides are multiples of the stride."""
        found: dict[int, int] = {}
        for window in self._axes:
            source = window.source if isinstance(window, Window) else None
            if isinstance(window, Window) and isinstance(source, Spatial) and window.offset == 1 - window.stride:
                found[source.index] = max(window.stride, found.get(source.index, 1))
        return found


def sides_of(size: int, base: Sequence[int]) -> tuple[int, ...]:
    """All sides of an input whose first side has this size, with the network's own ratio."""
    return tuple(size * side // base[0] for side in base)


def _with_parts(axes: set[Axis]) -> Sequence[Axis]:
    found: dict[Axis, None] = {}
    pending = list(axes)
    while pending:
        axis = pending.pop()
        if axis not in found and axis.spatial:
            found[axis] = None
            pending += axis.parts
    return tuple(found)

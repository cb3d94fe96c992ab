"""Legal input resolutions of a network, or lengths of its token sequences: every axis whole, every position kept, branches
that meet of equal size.
"""

from collections.abc import Sequence
from math import gcd

from tailor_ir.axes import Axis, Scaled, Sizes, Spatial, Window
from tailor_ir.structure.propagation import AxisMap

PROPOSED_SHARES = (0.5, 0.75)  # of the network's own resolution, which is always proposed
NEAR_SHARE = 0.05  # how far from a proposed share a rounder resolution may be, as a share of the network's own
ROUNDEST = 32  # resolutions are round by the powers of two up to this that divide them
SMALLEST_PART = 0.9  # of the smallest share; legal resolutions below it are not proposed


class Resolutions:
    """Legality of input sizes for one network."""

    def __init__(self, axis_map: AxisMap, base: int) -> None:
        self.base = base
        self._pairs = axis_map.equal_sizes
        found = {axis for axes in axis_map.axes.values() for axis in axes if axis.spatial}
        self._axes = _with_parts(found)

    def problem(self, size: int) -> str:
        """Why an input of size × size cannot be taken; "" when it can."""
        if size == self.base:
            return ""
        if size > self.base:
            return f"larger than the network's own, {self.base}"
        patch = self._patch()
        if size % patch:
            return f"not a multiple of the patch size {patch}"
        sizes = Sizes(groups={}, spatial=(size, size), batch=1)
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
        patch = self._patch()
        smallest = max(patch, round(SMALLEST_PART * min(shares) * self.base))
        legal = [s for s in range(self.base, smallest - 1, -1) if s % patch == 0 and not self.problem(s)]
        near = NEAR_SHARE * self.base

        def rank(size: int, wanted: float) -> tuple[float, int, float]:
            away = abs(size - wanted)
            return (away, 0, 0) if away > near else (near, -gcd(size, ROUNDEST), away)

        chosen = {min(legal, key=lambda s: rank(s, share * self.base)) for share in shares if legal}
        return sorted(chosen | {self.base})

    def _patch(self) -> int:
        """Stride of windows that do not overlap (patches) over the input; resolutions are multiples of it."""
        first = [w for w in self._axes if isinstance(w, Window) and isinstance(w.source, Spatial)]
        return max((w.stride for w in first if w.offset == 1 - w.stride), default=1)


def _with_parts(axes: set[Axis]) -> Sequence[Axis]:
    found: dict[Axis, None] = {}
    pending = list(axes)
    while pending:
        axis = pending.pop()
        if axis not in found and axis.spatial:
            found[axis] = None
            pending += axis.parts
    return tuple(found)

"""The whole Pareto front over the complete space, in two phases, and the hypervolume of points with a cost and a gain.

Less cost and more gain is better.

First the convex hull of the front: the codes that are best at some price of the cost. Between two known codes, the next
price to try makes both equal; the search ends when no better code is found.

Then the gaps between neighbours of the hull. Partial codes that stay below the corners of the known front are dropped
along the chain (`solvers.exact`). The first passes keep few partial codes, so that the corners are tight when all
partial codes are searched.

Source: Ulungu and Teghem, *The two phases method* (Foundations of Computing and Decision Sciences 20, 1995); thinning
of the front: Papadimitriou and Yannakakis, *On the approximability of trade-offs* (FOCS 2000).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain
from solvers.exact import SLACK, PriceBound, passage
from solvers.tables import Codes, Values


def pareto_mask(cost: Values, gain: Values) -> NDArray[np.bool_]:
    """Whether each of n points is dominated by no other point; of equal points the first counts. Returns (n,)."""
    mask = np.zeros(len(cost), bool)
    best = -np.inf
    for row in np.lexsort((np.arange(len(cost)), -gain, cost)):
        if gain[row] > best:
            mask[row] = True
            best = gain[row]
    return mask


def hypervolume(cost: Values, gain: Values, *, reference_cost: float, reference_gain: float) -> float:
    """Exact area that the points dominate up to the reference corner (high cost, little gain) [cost × gain].

    Points that cost more or gain less than the reference add nothing.
    """
    inside = (cost < reference_cost) & (gain > reference_gain)
    cost, gain = cost[inside], gain[inside]
    mask = pareto_mask(cost, gain)
    order = np.argsort(cost[mask])
    cost, gain = cost[mask][order], gain[mask][order]
    right = np.append(cost[1:], reference_cost)
    return float(np.sum((right - cost) * (gain - reference_gain)))


BEAMS: tuple[int | None, ...] = (512, 8192, None)


@dataclass(frozen=True, slots=True)
class Points:
    """n points that do not dominate each other, by ascending cost: codes (n, V), costs (n,) and gains (n,).

    error: within any budget, the best point gains at least as much as the best of all codes within (1 - `error`) of the budget.
    """

    codes: Codes
    cost: Values
    gain: Values
    error: float = 0.0

    @classmethod
    def of(cls, parts: Sequence["Points"]) -> "Points":
        """The front of several sets of points, with the largest of their errors."""
        cost, gain = (np.concatenate([getattr(part, name) for part in parts]) for name in ("cost", "gain"))
        rows = np.flatnonzero(pareto_mask(cost, gain))
        rows = rows[np.argsort(cost[rows])]
        codes = np.concatenate([part.codes for part in parts])[rows]
        return cls(codes, cost[rows], gain[rows], max(part.error for part in parts))

    def between(self, least: float, most: float) -> "Points":
        """The points with a cost in a range."""
        rows = (self.cost >= least) & (self.cost <= most)
        return Points(self.codes[rows], self.cost[rows], self.gain[rows], self.error)

    def sparse(self, error: float) -> "Points":
        """The fewest points that represent all within an error, in addition to their own error."""
        kept: list[int] = []
        row = len(self.cost) - 1
        while row > 0:
            kept.append(row)
            row = min(row - 1, int(np.searchsorted(self.cost, self.cost[row] * (1 - error))) - 1)
        rows = np.array([*range(min(1, len(self.cost))), *kept[::-1]], np.int64)
        total = 1 - (1 - self.error) * (1 - error)
        return Points(self.codes[rows], self.cost[rows], self.gain[rows], total)


class FrontSearch:
    """Lists the front of a chain with one cost, up to a cost of `most`, within an error of `tolerance`.

    A third of the error is for what the neighbours of the hull leave out; a third for partial codes that count as equal when
    too many remain; a third for points that are left out at the end.
    """

    def __init__(self, chain: Chain, most: float, tolerance: float) -> None:
        """Find the convex hull."""
        self._chain = chain
        self._third = 1 - (1 - tolerance) ** (1 / 3)
        self._most = most * (1 + SLACK)  # sums in another order round differently
        self._hull = _hull(chain, self._third)
        self._parts = [self._hull]
        self.gaps = [(left, right) for left, right in pairwise(self._hull.cost.tolist()) if left <= self._most]
        """Costs of neighbouring hull points."""

    def fill(self) -> Iterator[int]:
        """Fill one gap after the other; yield the number of known points after each."""
        for left, right in self.gaps:
            self._parts.append(_between(self._chain, self._hull.between(left, right), self._most, self._third))
            yield sum(len(part.cost) for part in self._parts)

    def points(self) -> Points:
        """The front, after all gaps are filled."""
        assert len(self._parts) == 1 + len(self.gaps)
        return Points.of(self._parts).between(0, self._most).sparse(self._third)


def whole_front(chain: Chain, most: float, tolerance: float) -> Points:
    """The front of a `FrontSearch`, computed at once."""
    search = FrontSearch(chain, most, tolerance)
    for _ in search.fill():
        continue
    return search.points()


def _hull(chain: Chain, error: float) -> Points:
    """The codes that are best at some price; if several cost the same within the error, not all of them."""

    def best(price: float, weight: float = 1.0) -> Points:
        code, gain, costs = chain.best(np.array([price]), weight)
        return Points(code[None], costs, np.array([gain]))

    ends = best(1.0, 0.0), best(0.0)
    found = Points.of(ends)
    open_ = [ends]
    while open_:
        left, right = open_.pop()
        gained, spent = float(right.gain[0] - left.gain[0]), float(right.cost[0] - left.cost[0])
        if spent <= 0 or gained <= 0 or left.cost[0] >= right.cost[0] * (1 - error):
            continue
        price = gained / spent
        middle = best(price)
        above = middle.gain[0] - left.gain[0] - price * (middle.cost[0] - left.cost[0])
        if above > SLACK * max(1.0, abs(float(left.gain[0]))):
            found = Points.of((found, middle))
            open_ += [(left, middle), (middle, right)]
    return found


def _between(chain: Chain, known: Points, most: float, error: float) -> Points:
    """The front between two known neighbours of the hull, up to a cost of `most`."""
    (least, largest), (lowest, highest) = known.cost.tolist(), known.gain.tolist()
    price = (highest - lowest) / (largest - least)
    line = lowest - price * least
    rest = chain.rest(np.array([price]))
    budget = min(largest * (1 + SLACK), most)
    thinned = 0.0
    for beam in BEAMS:
        corners = np.minimum(known.cost[1:], most) * (1 - error)
        floor = float((known.gain[:-1] - price * corners).min())
        if floor >= line - SLACK * max(1.0, abs(line)):
            break
        found = passage(
            chain,
            np.array([budget]),
            PriceBound(prices=np.array([price]), rest=rest, floor=floor + price * budget),
            beam=beam,
            tolerance=error,
            smallest=np.array([least]),
        )
        thinned = found.error
        if (complete := found.complete) is not None:
            met = Points(found.codes(np.arange(len(complete.state))), complete.costs[0], complete.gain)
            known = Points.of((known, met.between(least, largest)))
        if found.dropped == -np.inf:
            break
    return Points(known.codes, known.cost, known.gain, 1 - (1 - error) * (1 - thinned))

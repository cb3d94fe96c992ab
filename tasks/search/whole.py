"""The whole Pareto front over the complete space, in two phases.

First the front's convex hull: the best SubNets at every price of the cost, between two known ones at the price that makes them
equal, until nothing better is there. Then what lies between two neighbours of the hull: partial SubNets that stay below the
corners of the known front are dropped along the chain (`tasks.search.passage`); few states first, so that the corners are near
when all are gone through. Source: Ulungu and Teghem, *The two phases method* (Foundations of Computing and Decision Sciences
20, 1995); how the front is made sparse: Papadimitriou and Yannakakis, *On the approximability of trade-offs* (FOCS 2000).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tasks.progress import Progress
from tasks.search.chain import Chain, Values
from tasks.search.front import pareto_mask
from tasks.search.passage import SLACK, Codes, passage

BEAMS: tuple[int | None, ...] = (512, 8192, None)


@dataclass(frozen=True, slots=True)
class Points:
    """n SubNets that none of the others dominates, by ascending cost: codes (n, V), costs (n,) and gains (n,).

    error: within any budget, the best of them gains as much as the best of all within (1 - `error`) of that budget.
    """

    codes: Codes
    cost: Values
    gain: Values
    error: float = 0.0

    @classmethod
    def of(cls, parts: Sequence["Points"]) -> "Points":
        """The front of all, with the largest error."""
        cost, gain = (np.concatenate([getattr(part, name) for part in parts]) for name in ("cost", "gain"))
        rows = np.flatnonzero(pareto_mask(cost, gain))
        rows = rows[np.argsort(cost[rows])]
        codes = np.concatenate([part.codes for part in parts])[rows]
        return cls(codes, cost[rows], gain[rows], max(part.error for part in parts))

    def between(self, least: float, most: float) -> "Points":
        """Those of a cost in this range."""
        rows = (self.cost >= least) & (self.cost <= most)
        return Points(self.codes[rows], self.cost[rows], self.gain[rows], self.error)

    def sparse(self, error: float) -> "Points":
        """As few of them as such an error, on top of their own, allows."""
        kept: list[int] = []
        row = len(self.cost) - 1
        while row > 0:
            kept.append(row)
            row = min(row - 1, int(np.searchsorted(self.cost, self.cost[row] * (1 - error))) - 1)
        rows = np.array([*range(min(1, len(self.cost))), *kept[::-1]], np.int64)
        total = 1 - (1 - self.error) * (1 - error)
        return Points(self.codes[rows], self.cost[rows], self.gain[rows], total)


def whole_front(chain: Chain, most: float, tolerance: float, progress: Progress, name: str) -> Points:
    """All SubNets of a chain with one cost, of at most `most`, that no other one dominates, but for an error of `tolerance`.

    A third of it each is for what the hull's neighbours are not worth, for partial SubNets that count as equal where there are
    too many to go through, and for points that are left out.
    """
    third = 1 - (1 - tolerance) ** (1 / 3)
    most *= 1 + SLACK  # sums in another order round differently
    found = _hull(chain, third)
    edges = [(left, right) for left, right in pairwise(found.cost.tolist()) if left <= most]
    parts = [found]
    with progress.bar(f"whole front {name}", len(edges)) as bar:
        for left, right in edges:
            parts.append(_between(chain, found.between(left, right), most, third))
            bar.note(f"{sum(len(part.cost) for part in parts)} SubNets")
            bar.advance()
    return Points.of(parts).between(0, most).sparse(third)


def _hull(chain: Chain, error: float) -> Points:
    """The SubNets that are best at some price; of those that cost the same within the error not all."""

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
    """The front from the first one known to the last one, neighbours of the hull, or to a cost of `most`."""
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
            np.array([price]),
            rest,
            floor + price * budget,
            beam=beam,
            tolerance=error,
            smallest=np.array([least]),
        )
        thinned = found.error
        if (states := found.whole) is not None:
            met = Points(found.codes(np.arange(len(states.at))), states.costs[0], states.gain)
            known = Points.of((known, met.between(least, largest)))
        if found.dropped == -np.inf:
            break
    return Points(known.codes, known.cost, known.gain, 1 - (1 - error) * (1 - thinned))

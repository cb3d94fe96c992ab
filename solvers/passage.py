"""The passage along a chain: after each elimination, only partial codes that may still beat the best known code are kept.

A partial code has a choice for each decided variable, and is in a state of the frontier (`solvers.chain`). A price of the costs
bounds, per state, how much the undecided variables can still add. A partial code is dropped when it cannot gain enough at that
price, when it cannot stay within the budgets, or when another partial code in the same state dominates it.

If a single cost leaves too many partial codes, costs that differ by less than a share of `tolerance` of the budget count as
equal; at a tolerance of 0 none do. Source: Ibarra and Kim, *Fast approximation algorithms for the knapsack and sum of subset
problems* (JACM 22, 1975).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain
from solvers.elimination import Elimination
from solvers.tables import Codes, Values

Rows = NDArray[np.int64]
MOST_PARTIAL = 200_000  # partial codes without a beam; a quarter with several costs
SLACK = 1e-12  # relative: sums in another order round differently
RIVALS = 12  # partial codes that each one is compared with, of each kind


@dataclass(slots=True)
class Partial:
    """n partial codes: state of the frontier (n,), gain (n,), costs (K, n).

    Each extends a `parent` (n,), a row of the partial codes before the last elimination, by a `choice` (n,).
    """

    state: Rows
    gain: Values
    costs: Values
    parent: Rows
    choice: Rows

    @classmethod
    def start(cls, constraints: int) -> "Partial":
        """The one code in which nothing is decided."""
        none = np.zeros(1, np.int64)
        return cls(none, np.zeros(1), np.zeros((constraints, 1)), none, none)

    def take(self, rows: Rows | NDArray[np.bool_]) -> "Partial":
        """The partial codes of some rows."""
        return Partial(self.state[rows], self.gain[rows], self.costs[:, rows], self.parent[rows], self.choice[rows])


@dataclass(slots=True)
class Passage:
    """The partial codes that remain after each elimination.

    error: share of the budgets that counting costs as equal may have lost. dropped: the most that a code outside the beam may
    gain.
    """

    chain: Chain
    kept: list[Partial] = field(default_factory=list)
    error: float = 0.0
    dropped: float = -np.inf

    @property
    def complete(self) -> Partial | None:
        """The complete codes that the last elimination left; None if an earlier elimination left none."""
        return self.kept[-1] if len(self.kept) == len(self.chain.eliminations) else None

    def codes(self, rows: Rows) -> Codes:
        """Codes (n, V) of some rows (n,) of the complete codes."""
        codes = np.zeros((len(rows), self.chain.variables), np.int64)
        for each, partial in zip(reversed(self.chain.eliminations), reversed(self.kept), strict=True):
            codes[:, each.variable] = partial.choice[rows]
            rows = partial.parent[rows]
        return codes


def passage(
    chain: Chain,
    budgets: Values,
    prices: Values,
    rest: list[Values],
    floor: float,
    *,
    beam: int | None,
    tolerance: float,
    smallest: Values | None = None,
    dominance: bool = True,
) -> Passage:
    """Partial codes whose gain, with the rest of the budgets (K,) sold at the prices (K,), may end above `floor`.

    rest: bound on what the chain can add at these prices (`Chain.rest`). beam: number of most promising partial codes to keep;
    None: all. smallest: budgets (K,) that the tolerance refers to; None: `budgets`. dominance: drop dominated partial codes,
    too.
    """
    partial = Partial.start(chain.constraints)
    found = Passage(chain)
    width = tolerance * (budgets if smallest is None else smallest) / len(chain.eliminations)
    for number, each in enumerate(chain.eliminations):
        partial = _extended(each, partial)
        left = budgets[:, None] - partial.costs
        promise = partial.gain + rest[number + 1][partial.state] + prices @ left
        keep = promise > floor + SLACK * abs(floor)
        for k in range(chain.constraints):
            keep &= chain.least[k][number + 1][partial.state] <= left[k]
        partial, promise = partial.take(keep), promise[keep]
        if not len(partial.state):
            return found
        if dominance:
            rows = _undominated(partial) if chain.constraints == 1 else _less_dominated(partial, promise)
            partial, promise = partial.take(rows), promise[rows]
        most = (MOST_PARTIAL if chain.constraints == 1 else MOST_PARTIAL // 4) if beam is None else beam
        if beam is None and len(partial.state) > most and (width > 0).all():
            rows = _thinned(partial, width)
            partial, promise = partial.take(rows), promise[rows]
            found.error += tolerance / len(chain.eliminations)
        if len(partial.state) > most and (beam is not None or chain.constraints > 1):
            rows = np.argpartition(-promise, most)
            found.dropped = max(found.dropped, float(promise[rows[most:]].max()))
            partial = partial.take(rows[:most])
        found.kept.append(partial)
    return found


def _extended(each: Elimination, partial: Partial) -> Partial:
    """Every partial code with every choice of the next variable."""
    entries = each.entries[partial.state]
    choices = entries.shape[1]
    flat = entries.ravel()
    return Partial(
        each.after[flat],
        np.repeat(partial.gain, choices) + each.gain[flat],
        np.repeat(partial.costs, choices, axis=1) + each.costs[:, flat],
        np.repeat(np.arange(len(partial.state)), choices),
        np.tile(np.arange(choices), len(partial.state)),
    )


def _undominated(partial: Partial) -> Rows:
    """Rows that no other row in the same state dominates: at least the same gain at no higher cost. For a single cost."""
    order = np.lexsort((-partial.gain, partial.costs[0], partial.state))
    state, gain = partial.state[order], partial.gain[order]
    first = np.r_[True, state[1:] != state[:-1]]
    lift = float(np.ptp(gain)) + 1.0  # puts all gains of a state above those of the states before
    lifted = gain + np.cumsum(first) * lift
    best_before = np.r_[-np.inf, np.maximum.accumulate(lifted)[:-1]]
    return order[first | (lifted > best_before)]


def _less_dominated(partial: Partial, promise: Values) -> Rows:
    """Rows without most of the dominated ones: another row in the state has at least the gain, and no higher cost of any kind.

    The other row is sought among the most promising rows of the state, and among slightly more promising ones.
    """
    order = np.lexsort((-promise, partial.state))
    state, gain, costs = partial.state[order], partial.gain[order], partial.costs[:, order]
    here = np.arange(len(state))
    first = np.maximum.accumulate(np.where(np.r_[True, state[1:] != state[:-1]], here, 0))
    dominated = np.zeros(len(state), bool)
    for number in range(RIVALS):
        for rival in (first + number, here - 1 - number):
            rows = np.flatnonzero((rival >= first) & (rival < here) & ~dominated)
            other = rival[rows]
            below = (gain[other] >= gain[rows]) & (costs[:, other] <= costs[:, rows]).all(axis=0)
            dominated[rows[below]] = True
    return order[~dominated]


def _thinned(partial: Partial, width: Values) -> Rows:
    """For each state and interval of costs of `width` (K,), the row with the largest gain."""
    intervals = np.floor(partial.costs / width[:, None]).astype(np.int64)
    order = np.lexsort((partial.gain, *intervals, partial.state))
    keys = np.stack([partial.state, *intervals])[:, order]
    last = np.r_[(keys[:, 1:] != keys[:, :-1]).any(axis=0), True]
    return order[last]

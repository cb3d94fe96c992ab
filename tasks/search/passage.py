"""Partial SubNets, step by step along the chain: those are kept that may become better than what is known.

A price of the costs gives, for every state of the frontier (`tasks.search.chain`), how much the rest can still add. Partial
SubNets are dropped that cannot gain enough with it, or cannot keep the budgets, or that another one in the same state
dominates. Where one cost leaves too many, those whose costs differ by less than a share of `tolerance` of the budget count as
equal; at a tolerance of 0 none do. Source: Ibarra and Kim, *Fast approximation algorithms for the knapsack and sum of subset
problems* (JACM 22, 1975).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.search.chain import Chain, Step, Values

Codes = NDArray[np.int64]
Rows = NDArray[np.int64]
MOST_STATES = 200_000
SLACK = 1e-12
RIVALS = 12


@dataclass(slots=True)
class States:
    """n partial SubNets: position in the frontier (n,), gain (n,), costs (K, n); and whence each came."""

    at: Rows
    gain: Values
    costs: Values
    parent: Rows
    choice: Rows

    @classmethod
    def start(cls, constraints: int) -> "States":
        """Nothing is decided."""
        none = np.zeros(1, np.int64)
        return cls(none, np.zeros(1), np.zeros((constraints, 1)), none, none)

    def take(self, rows: Rows | NDArray[np.bool_]) -> "States":
        """Some of them."""
        return States(self.at[rows], self.gain[rows], self.costs[:, rows], self.parent[rows], self.choice[rows])


@dataclass(slots=True)
class Passage:
    """What was kept after each step; `whole`, when some were kept after the last one, which are whole SubNets.

    error: of the budgets, that counting some as equal made. dropped: the most that one which was left out may gain.
    """

    chain: Chain
    passed: list[States] = field(default_factory=list)
    error: float = 0.0
    dropped: float = -np.inf

    @property
    def whole(self) -> States | None:
        """The whole SubNets."""
        return self.passed[-1] if len(self.passed) == len(self.chain.steps) else None

    def codes(self, rows: Rows) -> Codes:
        """Codes (n, V) of rows (n,) of the whole ones."""
        codes = np.zeros((len(rows), len(self.chain.cardinalities)), np.int64)
        for step, layer in zip(reversed(self.chain.steps), reversed(self.passed), strict=True):
            codes[:, step.variable] = layer.choice[rows]
            rows = layer.parent[rows]
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
    """Those whose gain, with what is left of the budgets (K,) at the prices (K,), may be above `floor`.

    rest: what the chain can add at these prices. beam: only so many, the most promising ones; None: all. smallest: budgets (K,)
    that the tolerance is a share of; None: `budgets`. dominance: without those that others are never worse than.
    """
    states = States.start(chain.constraints)
    found = Passage(chain)
    width = tolerance * (budgets if smallest is None else smallest) / len(chain.steps)
    for number, step in enumerate(chain.steps):
        states = _extended(step, states)
        left = budgets[:, None] - states.costs
        promise = states.gain + rest[number + 1][states.at] + prices @ left
        keep = promise > floor + SLACK * abs(floor)
        for k in range(chain.constraints):
            keep &= chain.least[k][number + 1][states.at] <= left[k]
        states, promise = states.take(keep), promise[keep]
        if not len(states.at):
            return found
        if dominance:
            rows = _undominated(states) if chain.constraints == 1 else _less_dominated(states, promise)
            states, promise = states.take(rows), promise[rows]
        most = (MOST_STATES if chain.constraints == 1 else MOST_STATES // 4) if beam is None else beam
        if beam is None and len(states.at) > most and (width > 0).all():
            rows = _thinned(states, width)
            states, promise = states.take(rows), promise[rows]
            found.error += tolerance / len(chain.steps)
        if len(states.at) > most and (beam is not None or chain.constraints > 1):
            rows = np.argpartition(-promise, most)
            found.dropped = max(found.dropped, float(promise[rows[most:]].max()))
            states = states.take(rows[:most])
        found.passed.append(states)
    return found


def _extended(step: Step, states: States) -> States:
    """Every state with every choice."""
    around = step.around[states.at]
    choices = around.shape[1]
    flat = around.ravel()
    return States(
        step.after[flat],
        np.repeat(states.gain, choices) + step.gain[flat],
        np.repeat(states.costs, choices, axis=1) + step.costs[:, flat],
        np.repeat(np.arange(len(states.at)), choices),
        np.tile(np.arange(choices), len(states.at)),
    )


def _undominated(states: States) -> Rows:
    """Rows that no other one in the same place equals at no higher cost."""
    order = np.lexsort((-states.gain, states.costs[0], states.at))
    at, gain = states.at[order], states.gain[order]
    first = np.r_[True, at[1:] != at[:-1]]
    step = float(np.ptp(gain)) + 1.0
    lifted = gain + np.cumsum(first) * step
    best_before = np.r_[-np.inf, np.maximum.accumulate(lifted)[:-1]]
    return order[first | (lifted > best_before)]


def _less_dominated(states: States, promise: Values) -> Rows:
    """Rows, without most of those that another one in the same place equals at no higher cost of any kind.

    Looked for among the most promising ones in the place, and those that are a little more promising.
    """
    order = np.lexsort((-promise, states.at))
    at, gain, costs = states.at[order], states.gain[order], states.costs[:, order]
    first = np.maximum.accumulate(np.where(np.r_[True, at[1:] != at[:-1]], np.arange(len(at)), 0))
    here = np.arange(len(at))
    dominated = np.zeros(len(at), bool)
    for number in range(RIVALS):
        for rival in (first + number, here - 1 - number):
            rows = np.flatnonzero((rival >= first) & (rival < here) & ~dominated)
            other = rival[rows]
            below = (gain[other] >= gain[rows]) & (costs[:, other] <= costs[:, rows]).all(axis=0)
            dominated[rows[below]] = True
    return order[~dominated]


def _thinned(states: States, width: Values) -> Rows:
    """In each place, of rows whose costs are in the same interval of `width` (K,), the one with the largest gain."""
    intervals = np.floor(states.costs / width[:, None]).astype(np.int64)
    order = np.lexsort((states.gain, *intervals, states.at))
    keys = np.stack([states.at, *intervals])[:, order]
    last = np.r_[(keys[:, 1:] != keys[:, :-1]).any(axis=0), True]
    return order[last]

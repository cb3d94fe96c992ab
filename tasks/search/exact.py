"""The best SubNet within a budget over the complete space, with a guarantee.

Gain (predicted accuracy) and costs (predicted latency, energy, …) are sums of terms with few variables each. A Lagrangian
price of the costs gives, for every state along the chain (`tasks.search.chain`), how much the rest can still add; partial
SubNets that cannot beat the best known one are dropped, as are those that another one in the same state dominates. What is
left is small, so that going through it is exact. Where it is not, partial SubNets whose costs differ by less than a share of
`tolerance` of the budget count as equal. Sources: Fisher, *The Lagrangian relaxation method* (Management Science 27, 1981);
Ibarra and Kim, *Fast approximation algorithms for the knapsack and sum of subset problems* (JACM 22, 1975).

With several costs more partial SubNets may be left than can be gone through. Then the least promising are left out, and how
much the best of these may gain is the stated gap. So it is, too, where a cost is no sum: sums that it is never below bound it,
and whole SubNets are asked (`allowed`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from tasks.search.chain import Chain, Step, Values

Codes = NDArray[np.int64]
Allowed = Callable[[Codes], NDArray[np.bool_]]
BEAMS: tuple[int, ...] = (512, 8192)
MOST_STATES = 200_000
PRICE_ROUNDS = 60
SLACK = 1e-12
ASKED = 256  # whole SubNets at once
MOST_ASKED = 20_000  # states, where whole SubNets are asked
RIVALS = 12
PENALTY = 10.0
LARGEST_SHARE = 1e6  # of a budget: more is the same to the prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """`code` (V,) with its gain and costs (K,). No SubNet within (1 - `error`) of the budgets gains more than `gap` above it.

    Both 0: it is the optimum, but for rounding of floating-point numbers.
    """

    code: Codes
    gain: float
    costs: Values
    error: float = 0.0
    gap: float = 0.0


class Infeasible(Exception):
    """No SubNet keeps the budgets."""


class Unknown(Infeasible):
    """No SubNet that is allowed was found; there may be one."""


@dataclass(slots=True)
class _States:
    """n partial SubNets: position in the frontier (n,), gain (n,), costs (K, n); and whence each came."""

    at: NDArray[np.int64]
    gain: Values
    costs: Values
    parent: NDArray[np.int64]
    choice: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "_States":
        return _States(self.at[rows], self.gain[rows], self.costs[:, rows], self.parent[rows], self.choice[rows])


def optimum(
    chain: Chain,
    budgets: Values,
    tolerance: float = 1e-3,
    allowed: Allowed | None = None,
    known: Optimum | None = None,
) -> Optimum:
    """The code with the largest gain whose costs (K,) are within `budgets` (K,), of those (n, V) that are `allowed` (n,).

    known: one that is. Infeasible when there is none, Unknown when none was found.
    """
    budgets = budgets * (1 + SLACK)  # sums in another order round differently
    least = np.array([rest[0][0] for rest in chain.least])
    if (least > budgets).any():
        raise Infeasible
    prices, bound, met = _prices(chain, budgets)
    if met is not None and (allowed is None or allowed(met.code[None])[0]) and met.gain > _gain(known):
        known = met
    lowest = -np.inf
    if known is None:
        lowest = chain.best(np.zeros(chain.constraints), -1.0)[1]
        lowest -= 4 * SLACK * max(1.0, abs(lowest))
        if bound < lowest:
            raise Infeasible
    rest = chain.rest(prices)
    through = partial(_through, chain, budgets, prices, rest, allowed=allowed)

    def floor() -> float:
        return lowest if known is None else known.gain

    for beam in BEAMS:
        if known is not None and known.gain >= bound - SLACK * abs(bound):
            return known
        better = through(floor(), beam, 0.0).best
        known = known if better is None else better
    if known is not None and known.gain >= bound - SLACK * abs(bound):
        return known
    found = through(floor(), MOST_ASKED if allowed else None, tolerance)
    best = known if found.best is None else found.best
    if best is not None:
        return replace(best, error=found.error, gap=max(0.0, found.dropped - best.gain))
    if np.isfinite(found.dropped):
        raise Unknown
    raise Infeasible


def _gain(known: Optimum | None) -> float:
    return -np.inf if known is None else known.gain


def _prices(chain: Chain, budgets: Values) -> tuple[Values, float, Optimum | None]:
    """Prices (K,) with about the smallest bound on the gain, that bound, and the best code that was met on the way."""
    if chain.constraints == 0:
        code, gain, costs = chain.best(np.zeros(0))
        return np.zeros(0), gain, Optimum(code=code, gain=gain, costs=costs)
    if chain.constraints == 1:
        return _price(chain, budgets)
    return _price_vector(chain, budgets)


def _price(chain: Chain, budgets: Values) -> tuple[Values, float, Optimum | None]:
    """One cost: the price at which the bound is smallest, between a code within the budget and one beyond it."""
    code, gain, costs = chain.best(np.zeros(1))
    if costs[0] <= budgets[0]:
        return np.zeros(1), gain, Optimum(code=code, gain=gain, costs=costs)
    beyond = gain, costs[0]
    scale = max(float(sum(np.ptp(step.gain) for step in chain.steps)), 1e-300)
    start = scale / max(budgets[0] - chain.least[0][0][0], SLACK * budgets[0])
    code, gain, costs = chain.best(np.array([start]))
    while costs[0] > budgets[0]:
        beyond = gain, costs[0]
        start *= 8
        code, gain, costs = chain.best(np.array([start]))
    within = Optimum(code=code, gain=gain, costs=costs)
    price = start
    for _ in range(PRICE_ROUNDS):
        price = (beyond[0] - within.gain) / (beyond[1] - within.costs[0])
        code, gain, costs = chain.best(np.array([price]))
        value = gain - price * costs[0]
        if value <= within.gain - price * within.costs[0] + SLACK * max(1.0, abs(value)):
            break
        if costs[0] <= budgets[0]:
            within = Optimum(code=code, gain=gain, costs=costs)
        else:
            beyond = gain, costs[0]
    bound = within.gain + price * (budgets[0] - within.costs[0])
    return np.array([price]), float(bound), within


def _price_vector(chain: Chain, budgets: Values) -> tuple[Values, float, Optimum | None]:
    """Several costs: cutting planes. Those mixtures of the codes met so far that keep the budgets and gain most have prices;
    at these the best code is met next, until it brings nothing.

    Source: Kelley, *The cutting-plane method for solving convex programs* (SIAM J. Appl. Math. 8, 1960), in its dual form.
    """
    met = [chain.best(prices, weight) for prices, weight in _first_prices(chain.constraints)]
    best_prices, bound = np.zeros(chain.constraints), met[0][1]
    penalty = PENALTY
    for _ in range(PRICE_ROUNDS):
        gains = np.array([gain for _, gain, _ in met])
        shares = np.minimum(np.stack([costs for _, _, costs in met], axis=1) / budgets[:, None], LARGEST_SHARE)
        prices, penalised = _mixed(gains, shares, penalty)
        code, gain, costs = chain.best(prices / budgets)
        value = gain + float(prices @ (1 - costs / budgets))
        if value < bound:
            best_prices, bound = prices / budgets, value
        mixture = float((gains + prices @ (1 - shares)).max())
        met.append((code, gain, costs))
        if value <= mixture + SLACK * max(1.0, abs(value)):
            if not penalised or penalty > LARGEST_SHARE:
                break
            penalty *= PENALTY
    within = [Optimum(code=code, gain=gain, costs=costs) for code, gain, costs in met if (costs <= budgets).all()]
    return best_prices, bound, max(within, key=_gain, default=None)


def _first_prices(constraints: int) -> list[tuple[Values, float]]:
    """Of the largest gain, and of the least of each cost."""
    return [(np.zeros(constraints), 1.0), *((row, 0.0) for row in np.eye(constraints))]


def _mixed(gains: Values, shares: Values, penalty: float) -> tuple[Values, bool]:
    """Prices (K,) at which the best mixture of n codes with shares (K, n) of the budgets is made; and whether none keeps them.

    Then what none of the budgets has is bought for a penalty.
    """
    spread = max(float(np.ptp(gains)), SLACK)
    scaled = np.append((gains - gains.max()) / spread, -penalty)
    found = linprog(
        -scaled,
        A_ub=np.column_stack([shares, np.zeros(len(shares))]),
        b_ub=np.ones(len(shares)),
        A_eq=np.ones((1, len(scaled))),
        b_eq=[1.0],
        method="highs",
    )
    prices: Values = np.maximum(0.0, -found.ineqlin.marginals) * spread
    return prices, bool(found.x[-1] > SLACK)


@dataclass(frozen=True, slots=True)
class _Passage:
    """The best code that was found; the error that thinning made; the most that a partial code that was left out may gain."""

    best: Optimum | None
    error: float
    dropped: float = -np.inf


def _through(
    chain: Chain,
    budgets: Values,
    prices: Values,
    rest: list[Values],
    floor: float,
    beam: int | None,
    tolerance: float,
    *,
    allowed: Allowed | None,
) -> _Passage:
    """The best code above `floor`: of all, or of the `beam` most promising partial ones."""
    states = _States(
        np.zeros(1, np.int64),
        np.zeros(1),
        np.zeros((chain.constraints, 1)),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )
    passed: list[_States] = []
    width = tolerance * budgets / len(chain.steps)
    error, dropped = 0.0, -np.inf
    for number, step in enumerate(chain.steps):
        states = _extended(step, states)
        left = budgets[:, None] - states.costs
        promise = states.gain + rest[number + 1][states.at] + prices @ left
        keep = promise > floor + SLACK * abs(floor)
        for k in range(chain.constraints):
            keep &= chain.least[k][number + 1][states.at] <= left[k]
        states, promise = states.take(keep), promise[keep]
        if not len(states.at):
            return _Passage(None, error, dropped)
        if allowed is None:
            rows = _undominated(states) if chain.constraints == 1 else _less_dominated(states, promise)
            states, promise = states.take(rows), promise[rows]
        most = (MOST_STATES if chain.constraints == 1 else MOST_STATES // 4) if beam is None else beam
        if beam is None and len(states.at) > most:
            rows = _thinned(states, width)
            states, promise = states.take(rows), promise[rows]
            error += tolerance / len(chain.steps)
        if len(states.at) > most and (beam is not None or chain.constraints > 1):
            rows = np.argpartition(-promise, most)
            dropped = max(dropped, float(promise[rows[most:]].max()))
            states = states.take(rows[:most])
        passed.append(states)
    within = np.flatnonzero((states.costs <= budgets[:, None]).all(axis=0) & (states.gain > floor))
    return _Passage(_best_of(chain, passed, within[np.argsort(-states.gain[within])], allowed), error, dropped)


def _best_of(chain: Chain, passed: list[_States], rows: NDArray[np.int64], allowed: Allowed | None) -> Optimum | None:
    """The first of `rows` of the last states that is allowed."""
    for start in range(0, len(rows) if allowed else min(1, len(rows)), ASKED):
        some = rows[start : start + ASKED]
        codes = _codes(chain, passed, some if allowed else some[:1])
        good = np.flatnonzero(allowed(codes)) if allowed else np.zeros(1, np.int64)
        if len(good):
            row = int(some[good[0]])
            return Optimum(code=codes[good[0]], gain=float(passed[-1].gain[row]), costs=passed[-1].costs[:, row])
    return None


def _codes(chain: Chain, passed: list[_States], rows: NDArray[np.int64]) -> Codes:
    """Codes (n, V) of rows (n,) of the last states."""
    codes = np.zeros((len(rows), len(chain.cardinalities)), np.int64)
    for step, layer in zip(reversed(chain.steps), reversed(passed), strict=True):
        codes[:, step.variable] = layer.choice[rows]
        rows = layer.parent[rows]
    return codes


def _extended(step: Step, states: _States) -> _States:
    """Every state with every choice."""
    around = step.around[states.at]
    choices = around.shape[1]
    flat = around.ravel()
    return _States(
        step.after[flat],
        np.repeat(states.gain, choices) + step.gain[flat],
        np.repeat(states.costs, choices, axis=1) + step.costs[:, flat],
        np.repeat(np.arange(len(states.at)), choices),
        np.tile(np.arange(choices), len(states.at)),
    )


def _undominated(states: _States) -> NDArray[np.int64]:
    """Rows that no other one in the same place equals at no higher cost."""
    order = np.lexsort((-states.gain, states.costs[0], states.at))
    at, gain = states.at[order], states.gain[order]
    first = np.r_[True, at[1:] != at[:-1]]
    step = float(np.ptp(gain)) + 1.0
    lifted = gain + np.cumsum(first) * step
    best_before = np.r_[-np.inf, np.maximum.accumulate(lifted)[:-1]]
    return order[first | (lifted > best_before)]


def _less_dominated(states: _States, promise: Values) -> NDArray[np.int64]:
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


def _thinned(states: _States, width: Values) -> NDArray[np.int64]:
    """In each place, of rows whose costs are in the same interval of `width` (K,), the one with the largest gain."""
    intervals = np.floor(states.costs / np.maximum(width, 1e-300)[:, None]).astype(np.int64)
    order = np.lexsort((states.gain, *intervals, states.at))
    keys = np.stack([states.at, *intervals])[:, order]
    last = np.r_[(keys[:, 1:] != keys[:, :-1]).any(axis=0), True]
    return order[last]

"""The best SubNet within a budget over the complete space, with a guarantee.

Gain (predicted accuracy) and costs (predicted latency, energy, …) are sums of terms with few variables each. A Lagrangian
price of the costs gives, for every state along the chain (`tasks.search.chain`), how much the rest can still add; partial
SubNets that cannot beat the best known one are dropped, as are those that another one in the same state dominates. What is
left is small, so that going through it is exact. Where it is not, partial SubNets whose costs differ by less than a share of
`tolerance` of the budget count as equal. Sources: Fisher, *The Lagrangian relaxation method* (Management Science 27, 1981);
Ibarra and Kim, *Fast approximation algorithms for the knapsack and sum of subset problems* (JACM 22, 1975).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasks.search.chain import Chain, Step, Values

Codes = NDArray[np.int64]
BEAMS: tuple[int, ...] = (512, 8192)
MOST_STATES = 200_000
PRICE_ROUNDS = 60
SLACK = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """`code` (V,) with its gain and costs (K,). No SubNet within (1 - `error`) of the budgets gains more.

    error 0: it is the optimum, but for rounding of floating-point numbers.
    """

    code: Codes
    gain: float
    costs: Values
    error: float = 0.0


class Infeasible(Exception):
    """No SubNet keeps the budgets; `least` (K,): the smallest value of each cost alone."""

    def __init__(self, least: Values) -> None:
        super().__init__("no SubNet keeps the budgets")
        self.least = least


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


def optimum(chain: Chain, budgets: Values, tolerance: float = 1e-3) -> Optimum:
    """The code with the largest gain whose costs (K,) are within `budgets` (K,). Infeasible when there is none."""
    budgets = budgets * (1 + SLACK)  # sums in another order round differently
    least = np.array([rest[0][0] for rest in chain.least])
    if (least > budgets).any():
        raise Infeasible(least)
    prices, bound, known = _prices(chain, budgets)
    rest = chain.rest(prices)
    for beam in BEAMS:
        better, _ = _through(chain, budgets, prices, rest, _gain(known), beam, 0.0)
        known = known if better is None else better
        if known is not None and known.gain >= bound - SLACK * abs(bound):
            return known
    found, error = _through(chain, budgets, prices, rest, _gain(known), None, tolerance)
    best = known if found is None else found
    if best is None:
        raise Infeasible(least)
    return replace(best, error=error)


def _gain(known: Optimum | None) -> float:
    return -np.inf if known is None else known.gain


def _prices(chain: Chain, budgets: Values) -> tuple[Values, float, Optimum | None]:
    """Prices (K,) with about the smallest bound on the gain, that bound, and the best code that was met on the way."""
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
    """Several costs: subgradient steps (Polyak's, towards the best gain known) in units of the budgets."""
    scale = max(float(sum(np.ptp(step.gain) for step in chain.steps)), 1e-300) / budgets
    prices = np.zeros(chain.constraints)
    best_prices, bound, known, length = prices, np.inf, None, 1.0
    for _ in range(PRICE_ROUNDS):
        code, gain, costs = chain.best(prices)
        value = float(gain + prices @ (budgets - costs))
        if (costs <= budgets).all() and (known is None or gain > known.gain):
            known = Optimum(code=code, gain=gain, costs=costs)
        if value < bound:
            best_prices, bound = prices, value
        else:
            length *= 0.7
            prices = best_prices
            _, _, costs = chain.best(prices)
        excess = (costs - budgets) / budgets
        prices = np.maximum(0.0, prices + 0.2 * length * scale * excess / max(float(np.abs(excess).max()), 1e-12))
    return best_prices, bound, known


def _through(
    chain: Chain,
    budgets: Values,
    prices: Values,
    rest: list[Values],
    floor: float,
    beam: int | None,
    tolerance: float,
) -> tuple[Optimum | None, float]:
    """The best code above `floor`: of all, or of the `beam` most promising partial ones; and the error that thinning made."""
    states = _States(
        np.zeros(1, np.int64),
        np.zeros(1),
        np.zeros((chain.constraints, 1)),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )
    passed: list[_States] = []
    width = tolerance * budgets / len(chain.steps)
    error = 0.0
    for number, step in enumerate(chain.steps):
        states = _extended(step, states)
        left = budgets[:, None] - states.costs
        promise = states.gain + rest[number + 1][states.at] + prices @ left
        keep = promise > floor + SLACK * abs(floor) if np.isfinite(floor) else np.ones(len(promise), bool)
        for k in range(chain.constraints):
            keep &= chain.least[k][number + 1][states.at] <= left[k]
        states, promise = states.take(keep), promise[keep]
        if not len(states.at):
            return None, error
        if chain.constraints == 1:
            rows = _undominated(states)
            states, promise = states.take(rows), promise[rows]
        if beam is not None and len(states.at) > beam:
            rows = np.argpartition(-promise, beam)[:beam]
            states = states.take(rows)
        elif beam is None and len(states.at) > MOST_STATES:
            states = states.take(_thinned(states, width))
            error += tolerance / len(chain.steps)
        passed.append(states)
    within = np.flatnonzero((states.costs <= budgets[:, None]).all(axis=0) & (states.gain > floor))
    if not len(within):
        return None, error
    row = int(within[np.argmax(states.gain[within])])
    gain, costs = float(states.gain[row]), states.costs[:, row]
    code = np.zeros(len(chain.cardinalities), np.int64)
    for step, layer in zip(reversed(chain.steps), reversed(passed), strict=True):
        code[step.variable] = layer.choice[row]
        row = int(layer.parent[row])
    return Optimum(code=code, gain=gain, costs=costs), error


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


def _thinned(states: _States, width: Values) -> NDArray[np.int64]:
    """In each place, of rows whose costs are in the same interval of `width` (K,), the one with the largest gain."""
    intervals = np.floor(states.costs / np.maximum(width, 1e-300)[:, None]).astype(np.int64)
    order = np.lexsort((states.gain, *intervals, states.at))
    keys = np.stack([states.at, *intervals])[:, order]
    last = np.r_[(keys[:, 1:] != keys[:, :-1]).any(axis=0), True]
    return order[last]

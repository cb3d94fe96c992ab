"""The best code within budgets over the complete space, with a guarantee.

Gain and costs (in AutoTailor: predicted accuracy; predicted latency, energy, …) are sums of tables over few variables each.
With a Lagrangian price of the costs, partial codes that cannot beat the best known code are dropped along the chain
(`solvers.passage`). If few partial codes remain, all of them are searched and the result is exact. If many remain, partial
codes whose costs differ by less than a share of `tolerance` of the budget count as equal. Source: Fisher, *The Lagrangian
relaxation method* (Management Science 27, 1981).

With several costs, more partial codes may remain than can be searched. Then the least promising are left out, and the most that
they could gain is reported as the gap. A gap is also reported when a cost is not a sum of tables: lower bounds of it are sums
of tables, and complete codes are checked by `allowed`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain
from solvers.errors import Infeasible, Undecided
from solvers.passage import SLACK, Passage, passage
from solvers.tables import Codes, Values

Allowed = Callable[[Codes], NDArray[np.bool_]]
BEAMS: tuple[int, ...] = (512, 8192)
PRICE_ROUNDS = 60
ASKED = 256  # complete codes per call of `allowed`
MOST_ASKED = 20_000  # partial codes, if complete codes are checked by `allowed`
PENALTY = 10.0
LARGEST_SHARE = 1e6  # of a budget; larger costs make no difference to the prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """`code` (V,) with its gain and costs (K,). No code within (1 - `error`) of the budgets gains more than `gap` above it.

    If error and gap are 0, the code is the optimum, except for rounding of floating-point numbers.
    """

    code: Codes
    gain: float
    costs: Values
    error: float = 0.0
    gap: float = 0.0


def optimum(
    chain: Chain,
    budgets: Values,
    tolerance: float = 1e-3,
    allowed: Allowed | None = None,
    known: Optimum | None = None,
) -> Optimum:
    """The code with the largest gain whose costs (K,) are within `budgets` (K,).

    allowed: which codes (n, V) are legal (n,); None: all. known: a legal code within the budgets. Infeasible if no code is
    legal and within the budgets, Undecided if none was found.
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
    for beam in (*BEAMS, MOST_ASKED if allowed else None):
        if known is not None and known.gain >= bound - SLACK * abs(bound):
            return known
        floor = lowest if known is None else known.gain
        found = passage(chain, budgets, prices, rest, floor, beam=beam, tolerance=tolerance, dominance=allowed is None)
        better = _best_of(found, budgets, floor, allowed)
        known = known if better is None else better
        if found.dropped <= _gain(known):
            break
    if known is not None:
        return replace(known, error=found.error, gap=max(0.0, found.dropped - known.gain))
    if np.isfinite(found.dropped):
        raise Undecided(found.dropped)
    raise Infeasible


def _gain(known: Optimum | None) -> float:
    return -np.inf if known is None else known.gain


def _prices(chain: Chain, budgets: Values) -> tuple[Values, float, Optimum | None]:
    """Prices (K,) with about the smallest bound on the gain, the bound, and the best code within budgets met on the way."""
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
    scale = max(float(sum(np.ptp(each.gain) for each in chain.eliminations)), 1e-300)
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
    """Several costs: cutting planes. The prices come from the mixture of known codes that is within the budgets and gains most.

    The best code at these prices is added to the known codes, until it brings no improvement.

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
    """Prices and weights for the code with the largest gain, and for the code with the least of each cost."""
    return [(np.zeros(constraints), 1.0), *((row, 0.0) for row in np.eye(constraints))]


def _mixed(gains: Values, shares: Values, penalty: float) -> tuple[Values, bool]:
    """Prices (K,) of the best mixture of n codes, and whether no mixture is within the budgets. shares: (K, n), of the budgets.

    If no mixture is, the missing share of the budgets is bought at a penalty.
    """
    from scipy.optimize import linprog  # the import takes a second

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


def _best_of(found: Passage, budgets: Values, floor: float, allowed: Allowed | None) -> Optimum | None:
    """The best allowed code among the complete codes that are within the budgets and gain more than `floor`."""
    complete = found.complete
    if complete is None:
        return None
    within = np.flatnonzero((complete.costs <= budgets[:, None]).all(axis=0) & (complete.gain > floor))
    rows = within[np.argsort(-complete.gain[within])]
    for start in range(0, len(rows) if allowed else min(1, len(rows)), ASKED):
        some = rows[start : start + ASKED] if allowed else rows[:1]
        codes = found.codes(some)
        good = np.flatnonzero(allowed(codes)) if allowed else np.zeros(1, np.int64)
        if len(good):
            row = int(some[good[0]])
            return Optimum(code=codes[good[0]], gain=float(complete.gain[row]), costs=complete.costs[:, row])
    return None

"""The best code within budgets over the complete space, with a guarantee, by passages of partial codes along a chain.

Gain and costs (in AutoTailor: predicted accuracy; predicted latency, energy, …) are sums of tables over few variables
each. A partial code has a choice for each decided variable, and is in a state of the frontier (`solvers.chain`). A
Lagrangian price of the costs bounds, per state, how much the undecided variables can still add. After each elimination,
a partial code is dropped when it cannot gain enough at that price to beat the best known code, when it cannot stay
within the budgets, or when another partial code in the same state dominates it. If few partial codes remain, all of
them are searched and the result is exact. Source: Fisher, *The Lagrangian relaxation method* (Management Science 27,
1981).

If a single cost leaves too many partial codes, costs that differ by less than a share of `tolerance` of the budget
count as equal; at a tolerance of 0 none do. Source: Ibarra and Kim, *Fast approximation algorithms for the knapsack and
sum of subset problems* (JACM 22, 1975).

With several costs, more partial codes may remain than can be searched. Then the least promising are left out, and the
most that they could gain is reported as the gap. A gap is also reported when a cost is not a sum of tables: lower
bounds of it are sums of tables, and complete codes are checked by `allowed`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from solvers.chain import Chain, Elimination
from solvers.tables import Codes, Indices, Infeasible, Undecided, Values

MOST_PARTIAL = 200_000  # partial codes without a beam; a quarter with several costs
SLACK = 1e-12  # relative: sums in another order round differently
RIVALS = 12  # partial codes that each one is compared with, of each kind


@dataclass(slots=True)
class Partial:
    """n partial codes: state of the frontier (n,), gain (n,), costs (K, n).

    Each extends a `parent` (n,), a row of the partial codes before the last elimination, by a `choice` (n,).
    """

    state: Indices
    gain: Values
    costs: Values
    parent: Indices
    choice: Indices

    @classmethod
    def start(cls, constraints: int) -> "Partial":
        """The one code in which nothing is decided."""
        none = np.zeros(1, np.int64)
        return cls(none, np.zeros(1), np.zeros((constraints, 1)), none, none)

    def take(self, rows: Indices | NDArray[np.bool_]) -> "Partial":
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

    def codes(self, rows: Indices) -> Codes:
        """Codes (n, V) of some rows (n,) of the complete codes."""
        codes = np.zeros((len(rows), self.chain.variables), np.int64)
        for each, partial in zip(reversed(self.chain.eliminations), reversed(self.kept), strict=True):
            codes[:, each.variable] = partial.choice[rows]
            rows = partial.parent[rows]
        return codes


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBound:
    """A bound on the gain of partial codes at prices (K,) of the costs. rest: bound on what the chain can add (`Chain.rest`).

    floor: a partial code is dropped if it cannot end above this gain, with the rest of the budgets sold at the prices.
    """

    prices: Values
    rest: list[Values]
    floor: float


def passage(
    chain: Chain,
    budgets: Values,
    bound: PriceBound,
    *,
    beam: int | None,
    tolerance: float,
    smallest: Values | None = None,
    dominance: bool = True,
) -> Passage:
    """Partial codes within the budgets (K,) that may end above the floor of a bound.

    beam: number of most promising partial codes to keep; None: all. smallest: budgets (K,) that the tolerance refers to; None:
    `budgets`. dominance: drop dominated partial codes, too.
    """
    prices, rest, floor = bound.prices, bound.rest, bound.floor
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


def _undominated(partial: Partial) -> Indices:
    """Rows that no other row in the same state dominates: at least the same gain at no higher cost. For a single cost."""
    order = np.lexsort((-partial.gain, partial.costs[0], partial.state))
    state, gain = partial.state[order], partial.gain[order]
    first = np.r_[True, state[1:] != state[:-1]]
    lift = float(np.ptp(gain)) + 1.0  # puts all gains of a state above those of the states before
    lifted = gain + np.cumsum(first) * lift
    best_before = np.r_[-np.inf, np.maximum.accumulate(lifted)[:-1]]
    return order[first | (lifted > best_before)]


def _less_dominated(partial: Partial, promise: Values) -> Indices:
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


def _thinned(partial: Partial, width: Values) -> Indices:
    """For each state and interval of costs of `width` (K,), the row with the largest gain."""
    intervals = np.floor(partial.costs / width[:, None]).astype(np.int64)
    order = np.lexsort((partial.gain, *intervals, partial.state))
    keys = np.stack([partial.state, *intervals])[:, order]
    last = np.r_[(keys[:, 1:] != keys[:, :-1]).any(axis=0), True]
    return order[last]


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
    chain: Chain, budgets: Values, tolerance: float = 1e-3, allowed: Allowed | None = None, known: Optimum | None = None
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
        priced = PriceBound(prices=prices, rest=rest, floor=floor)
        found = passage(chain, budgets, priced, beam=beam, tolerance=tolerance, dominance=allowed is None)
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
    best_prices = np.zeros(chain.constraints)
    met = [
        chain.best(best_prices),
        *(chain.best(prices, 0.0) for prices in np.eye(chain.constraints)),
    ]  # least of each cost
    bound = met[0][1]
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

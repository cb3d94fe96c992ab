"""SubNets around a known SubNet: one modification is decided, then all other variables are chosen anew to match it.

Another resolution or depth pays only together with other widths. A converged population changes few variables at a time, so it
can leave its resolution or its depth only through worse SubNets. Here many variables change at once:

1. The predictors give the score and the costs of every single modification of the SubNet.
2. A Lagrangian price of the costs decides the best choice of every variable. Bisection finds the lowest price whose SubNet
keeps the budgets.
3. The rest of the budgets is spent on further choices, one at a time.

The costs and the score may be of any kind; they need not be sums of tables.

The choices of skipped blocks have no effect, so they would stay the same. A second form of each SubNet has skipped blocks at
their smallest choices: in the second form, adding a skipped block again is cheap.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Codes, Problem, Scores, Values, unique_rows

ROUNDS = 2
"""How often modifications are predicted anew, around the SubNet chosen before."""
HALVINGS = 10
FILLINGS = 6
"""Number of choices that are tried to spend the rest of the budgets."""
CHEAPEST, DEAREST = 1e-2, 1e3
"""Initial prices of the bisection; at price 1 the whole range of costs is worth the whole range of scores."""
KEPT = 1e-9
"""Least gain of score that another choice must bring."""


def around(problem: Problem, code: Codes, budgets: Values, most: int) -> Codes:
    """Canonical codes (n, V) around a code (V,), within budgets (K,), at least one of them finite.

    most: number of modifications that are decided; those with the largest change of costs come first.
    """
    choices = _Choices.of(np.asarray(problem.space.cardinalities))
    slots = np.flatnonzero(choices.choice != code[choices.variable])
    codes = np.repeat(code[None], len(slots), axis=0)
    codes[np.arange(len(slots)), choices.variable[slots]] = choices.choice[slots]
    changes = np.abs(_strain(_predicted(problem, codes), budgets) - _strain(_predicted(problem, code[None]), budgets))
    first = np.argsort(-changes, kind="stable")[:most]
    codes, decided = codes[first], choices.variable[slots[first]]
    hidden = problem.without_effect(problem.space.canonical_codes(codes))
    hidden[np.arange(len(codes)), decided] = False
    rows = np.flatnonzero(hidden.any(axis=1))
    codes = np.concatenate([codes, np.where(hidden[rows], 0, codes[rows])])
    return _rebalanced(problem, choices, codes, np.concatenate([decided, decided[rows]]), budgets)


class _Choices(NamedTuple):
    """Variable and choice of each of all S choices."""

    variable: NDArray[np.int64]
    choice: NDArray[np.int64]

    @classmethod
    def of(cls, cardinalities: NDArray[np.int64]) -> "_Choices":
        return cls(
            np.repeat(np.arange(len(cardinalities)), cardinalities), np.concatenate([*map(np.arange, cardinalities)])
        )


def _rebalanced(
    problem: Problem, choices: _Choices, codes: Codes, decided: NDArray[np.int64], budgets: Values
) -> Codes:
    """Distinct canonical codes within the budgets, from codes (n, V) whose variable `decided` (n,) does not change."""
    rows, found = np.arange(len(codes)), [codes[:0]]
    for _ in range(ROUNDS):
        gain, strain = _effects(problem, choices, codes, budgets)
        gain[rows[:, None], np.arange(codes.shape[1]), codes] += KEPT
        own = gain[rows, decided, codes[rows, decided]]
        gain[rows, decided] = -np.inf
        gain[rows, decided, codes[rows, decided]] = own
        codes, kept = _within(problem, gain, strain, codes, budgets)
        codes[kept] = _filled(problem, gain[kept], strain[kept], codes[kept], budgets)
        found.append(problem.space.canonical_codes(codes[kept]))
    return unique_rows(np.concatenate(found))


def _effects(problem: Problem, choices: _Choices, codes: Codes, budgets: Values) -> tuple[Values, Values]:
    """Scores and strains (n, V, C) of all single modifications of codes (n, V).

    C: the most choices of a variable. Variables with fewer choices have a score of -inf beyond them.
    """
    number, size = len(codes), len(choices.variable)
    modified = np.repeat(codes, size, axis=0)
    modified[np.arange(len(modified)), np.tile(choices.variable, number)] = np.tile(choices.choice, number)
    scores = _predicted(problem, modified)
    shape = (*codes.shape, int(choices.choice.max()) + 1)
    gain, strain = np.full(shape, -np.inf), np.zeros(shape)
    gain[:, choices.variable, choices.choice] = scores.score.reshape(number, size)
    strain[:, choices.variable, choices.choice] = _strain(scores, budgets).reshape(number, size)
    return gain, strain


def _within(
    problem: Problem, gain: Values, strain: Values, codes: Codes, budgets: Values
) -> tuple[Codes, NDArray[np.bool_]]:
    """For each row the choices at the lowest price that keeps the budgets, else `codes`; and whether a price keeps them."""
    scores = np.where(np.isfinite(gain), gain, np.nan)
    unit = _range(scores) / np.maximum(_range(strain), np.finfo(float).tiny)
    low, high = np.log(np.maximum(unit, np.finfo(float).tiny)) + np.log([[CHEAPEST], [DEAREST]])
    codes, kept = codes.copy(), np.zeros(len(codes), bool)
    for step in range(HALVINGS + 1):
        price = (low + high) / 2 if step else high
        chosen = np.argmax(gain - np.exp(price)[:, None, None] * strain, axis=2)
        within = _predicted(problem, chosen).within(budgets)
        codes[within], kept = chosen[within], kept | within
        low, high = np.where(within, low, price), np.where(within, price, high)
    return codes, kept


def _filled(problem: Problem, gain: Values, strain: Values, codes: Codes, budgets: Values) -> Codes:
    """Codes (n, V) after spending the rest of the budgets on further choices, one at a time, the most promising first.

    `gain` and `codes` are changed.
    """
    slack = np.isfinite(budgets).sum()
    rows, variables = np.arange(len(codes)), np.arange(codes.shape[1])
    scores = _predicted(problem, codes)
    for _ in range(FILLINGS):
        own = rows[:, None], variables, codes
        more = gain - gain[own][:, :, None]
        more[strain - strain[own][:, :, None] > (slack - _strain(scores, budgets))[:, None, None]] = -np.inf
        variable, choice = np.divmod(
            more.reshape(len(codes), gain.shape[1] * gain.shape[2]).argmax(axis=1), gain.shape[2]
        )
        some = np.flatnonzero(more[rows, variable, choice] > 0)
        tried = codes[some]
        tried[np.arange(len(some)), variable[some]] = choice[some]
        after = _predicted(problem, tried)
        better = after.within(budgets) & (after.score > scores.score[some])
        gain[some, variable[some], choice[some]] = np.where(better, gain[some, variable[some], choice[some]], -np.inf)
        codes[some[better]] = tried[better]
        scores.costs[some[better]], scores.score[some[better]] = after.costs[better], after.score[better]
    return codes


def _range(values: Values) -> Values:
    found: Values = np.nanmax(values, axis=(1, 2)) - np.nanmin(values, axis=(1, 2))
    return found


def _predicted(problem: Problem, codes: Codes) -> Scores:
    return problem.predict(problem.space.canonical_codes(codes))


def _strain(scores: Scores, budgets: Values) -> Values:
    """Costs as shares of the finite budgets, added up (n,)."""
    bounded = np.isfinite(budgets)
    found: Values = (scores.costs[:, bounded] / budgets[bounded]).sum(axis=1)
    return found

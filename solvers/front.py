"""Pareto front and hypervolume of points with a cost and a gain: less cost and more gain is better."""

import numpy as np
from numpy.typing import NDArray

from solvers.tables import Values


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

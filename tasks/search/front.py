"""Pareto front and hypervolume of (latency, accuracy) points: less latency and more accuracy is better."""

import numpy as np
from numpy.typing import NDArray

from tasks.search.problem import Values


def pareto_mask(latency_ms: Values, accuracy: Values) -> NDArray[np.bool_]:
    """Which of n points no other point dominates; of equal points the first. Returns (n,)."""
    mask = np.zeros(len(latency_ms), bool)
    best = -np.inf
    for row in np.lexsort((np.arange(len(latency_ms)), -accuracy, latency_ms)):
        if accuracy[row] > best:
            mask[row] = True
            best = accuracy[row]
    return mask


def hypervolume(latency_ms: Values, accuracy: Values, *, reference_ms: float, reference_accuracy: float) -> float:
    """Exact area that the points dominate up to the reference (slow, inaccurate) corner [ms × fraction].

    Points that are slower or less accurate than the reference add nothing.
    """
    inside = (latency_ms < reference_ms) & (accuracy > reference_accuracy)
    latency_ms, accuracy = latency_ms[inside], accuracy[inside]
    mask = pareto_mask(latency_ms, accuracy)
    order = np.argsort(latency_ms[mask])
    latency_ms, accuracy = latency_ms[mask][order], accuracy[mask][order]
    right_ms = np.append(latency_ms[1:], reference_ms)
    return float(np.sum((right_ms - latency_ms) * (accuracy - reference_accuracy)))

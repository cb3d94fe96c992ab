"""How well predictions order what was measured."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau


def kendall_tau(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float | None:
    """Kendall's tau of two columns (n,); None where there is no order: fewer than two, or all equal."""
    if len(measured) < 2:
        return None
    tau = float(kendalltau(predicted, measured).statistic)
    return tau if math.isfinite(tau) else None

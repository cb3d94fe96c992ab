"""Agreement of predictions with measurements: their errors, and how well they order the measurements."""

import math

import numpy as np
from numpy.typing import NDArray


def kendall_tau(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float | None:
    """Kendall's tau of two columns (n,); None if there is no order: fewer than two values, or all equal."""
    if len(measured) < 2:
        return None
    from scipy.stats import kendalltau  # takes a second

    tau = float(kendalltau(predicted, measured).statistic)
    return tau if math.isfinite(tau) else None


def errors_in_points(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> dict[str, float]:
    """Mean and largest absolute difference of two columns of accuracies (n,), given as fractions, in points."""
    points = 100 * np.abs(predicted - measured)
    return {"mean_error_points": float(points.mean()), "max_error_points": float(points.max())}

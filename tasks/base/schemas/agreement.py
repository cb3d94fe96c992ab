"""Errors of predictions against measurements."""

from tasks.base.schemas.stored import Record


class RelativeErrors(Record):
    """Relative errors of predictions: median and largest, share within ±10 %, Kendall's tau. Only `n` is set if it is 0."""

    n: int
    median_relative_error: float | None = None
    max_relative_error: float | None = None
    within_10_percent: float | None = None
    kendall_tau: float | None = None


class PointErrors(Record):
    """Mean and largest absolute difference of accuracies in points; Kendall's tau, None if there is no order."""

    mean_error_points: float
    max_error_points: float
    kendall_tau: float | None

"""MLflow: one run per pipeline run, one nested run per stage."""

from flows.tracking.tracker import MetricLog, Tracker, flatten, start_tracking

__all__ = ["MetricLog", "Tracker", "flatten", "start_tracking"]

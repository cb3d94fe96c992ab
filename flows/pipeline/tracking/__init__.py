"""MLflow: one run per pipeline run, one nested run per stage."""

from typing import TYPE_CHECKING

from importing.lazy import public_names

if TYPE_CHECKING:
    from flows.pipeline.tracking.overview import flatten
    from flows.pipeline.tracking.tracker import MetricLog, Tracker, start_tracking
else:
    __getattr__ = public_names(__name__, __file__)

__all__ = ["MetricLog", "Tracker", "flatten", "start_tracking"]

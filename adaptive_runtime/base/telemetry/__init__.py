"""Metrics and spans by OpenTelemetry, if its standard variables (`OTEL_*`) name an endpoint; else nothing is imported.

Only names, digests, counts and times are sent: no inputs, answers, paths or error messages.
"""

from adaptive_runtime.base.telemetry.metrics import metrics_export
from adaptive_runtime.base.telemetry.spans import span

__all__ = ["metrics_export", "span"]

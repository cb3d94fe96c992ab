"""Metrics and spans by OpenTelemetry, where its standard variables (`OTEL_*`) name an endpoint; else nothing is imported.

Names, digests, counts and times alone are sent: no inputs, answers, paths or messages of errors.
"""

from adaptive_runtime.telemetry.metrics import metrics_export
from adaptive_runtime.telemetry.spans import span

__all__ = ["metrics_export", "span"]

"""Whether telemetry is requested, and the description of its sender."""

import logging
import os
from typing import Any, Literal

Signal = Literal["METRICS", "TRACES"]
LOG = logging.getLogger("adaptive_runtime")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXTRA = (
    "in the clone: pip install -e '.[telemetry]', on a device: "
    "pip install 'autotailor_runtime-VERSION-py3-none-any.whl[telemetry]'"
)


def endpoint_variable(signal: Signal) -> str | None:
    """The variable that names the endpoint for a signal; None: no variable, or export is switched off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return None
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", ENDPOINT)
    return next((name for name in names if os.environ.get(name)), None)


def missing(signal: Signal, error: ImportError) -> None:
    """Warn about missing packages instead of failing: the variables may have been set for other programs."""
    LOG.warning("%s is set, and '%s' is missing: nothing is sent; %s", endpoint_variable(signal), error.name, EXTRA)


def resource(service: str) -> Any:
    """The sender of a signal: the name of the service, unless `OTEL_SERVICE_NAME` sets another one."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service})

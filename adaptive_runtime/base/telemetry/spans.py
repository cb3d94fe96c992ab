"""Spans: durations of nested operations."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adaptive_runtime.base.telemetry.wanted import endpoint_variable, missing, resource

SERVICE = "autotailor"
Attribute = str | int | float | bool


@contextmanager
def span(name: str, *, holds: bool = True, **attributes: Attribute) -> Iterator[None]:
    """A span around a block, inside the open span of this thread. Errors are recorded by class, without messages.

    holds: whether spans of the block lie inside of it; false in a generator, whose caller opens its own spans meanwhile.
    """
    tracer = _tracer() if endpoint_variable("TRACES") else None
    if tracer is None:
        yield
        return
    from opentelemetry.trace import Status, StatusCode

    told = {f"autotailor.{key}": value for key, value in attributes.items()}
    options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
    with (tracer.start_as_current_span if holds else tracer.start_span)(name, attributes=told, **options) as opened:
        try:
            yield
        except GeneratorExit:  # the consumer has enough
            raise
        except BaseException as error:
            opened.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise


@functools.cache
def _tracer() -> Any:
    """Tracer that sends spans in its own thread, the last ones when the process ends; None: the packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        missing("TRACES", error)
        return None
    provider = TracerProvider(resource=resource(SERVICE))  # a private provider: MLflow has one, too
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer(SERVICE)

"""Metrics and spans by OpenTelemetry, if its standard variables (`OTEL_*`) name an endpoint; else nothing is imported.

Only names, digests, counts and times are sent: no inputs, answers, paths or error messages.

Whether telemetry is requested, and the description of its sender.

Periodic export of Prometheus metrics: they are counted once for all readers.

Spans: durations of nested operations.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client.core import Metric
import functools
from collections.abc import Iterator
from contextlib import contextmanager

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


Families = Callable[[], Iterable["Metric"]]
INTERVAL_MS = 60_000.0
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
SCOPE = "autotailor"


def metrics_export(service: str, families: Families, *, in_thread: bool = False) -> list[Coroutine[Any, Any, None]]:
    """Coroutines that send the metrics of a service until cancelled, to run beside a server; empty without an endpoint.

    families: called in the event loop, or in a thread, if it takes time.
    """
    if endpoint_variable("METRICS") is None:
        return []
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        missing("METRICS", error)
        return []
    return [_send(OTLPMetricExporter(), resource(service), families, in_thread)]


async def _send(exporter: Any, sender: Any, families: Families, in_thread: bool) -> None:
    started_ns = time.time_ns()
    try:
        while True:
            await asyncio.sleep(_interval_s())
            found = await asyncio.to_thread(lambda: list(families())) if in_thread else list(families())
            await asyncio.to_thread(exporter.export, _data(found, sender, started_ns))
    finally:
        exporter.shutdown()


def _interval_s() -> float:
    try:
        return max(0.01, float(os.environ.get(INTERVAL, INTERVAL_MS)) / 1e3)
    except ValueError:
        return INTERVAL_MS / 1e3


def _data(families: Iterable["Metric"], sender: Any, started_ns: int) -> Any:
    """The metrics in the exporter's form."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    metrics = [_metric(family, started_ns, now_ns) for family in families]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), [one for one in metrics if one is not None], "")
    return MetricsData([ResourceMetrics(sender, [scope], "")])


def _metric(family: "Metric", started_ns: int, now_ns: int) -> Any:
    """A counter, a gauge or a histogram; None for other kinds."""
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, NumberDataPoint, Sum

    whole = AggregationTemporality.CUMULATIVE

    def points(end: str) -> list[NumberDataPoint]:
        samples = [sample for sample in family.samples if sample.name == f"{family.name}{end}"]
        return [NumberDataPoint(sample.labels, started_ns, now_ns, sample.value) for sample in samples]

    data: Any
    if family.type == "counter":
        data = Sum(points("_total"), whole, True)
    elif family.type == "gauge":
        data = Gauge(points(""))
    elif family.type == "histogram":
        data = Histogram(_histogram_points(family, started_ns, now_ns), whole)
    else:
        return None
    return Metric(family.name, family.documentation, family.unit, data)


def _histogram_points(family: "Metric", started_ns: int, now_ns: int) -> list[Any]:
    """A point for each set of labels. Prometheus adds buckets up, OpenTelemetry does not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    bounds: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            bounds.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    found = []
    for labels, buckets in bounds.items():
        buckets.sort()
        below = [0.0, *(count for _, count in buckets)]
        counts = [int(count - before) for before, count in pairwise(below)]
        edges = [edge for edge, _ in buckets[:-1]]
        extremes: Any = None  # Prometheus has none
        count, total = int(below[-1]), sums.get(labels, 0.0)
        found.append(
            HistogramDataPoint(dict(labels), started_ns, now_ns, count, total, counts, edges, extremes, extremes)
        )
    return found


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

    described = {f"autotailor.{key}": value for key, value in attributes.items()}
    options: dict[str, Any] = {"record_exception": False, "set_status_on_exception": False}
    with (tracer.start_as_current_span if holds else tracer.start_span)(
        name, attributes=described, **options
    ) as opened:
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

"""Periodic export of Prometheus metrics: they are counted once for all readers."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from adaptive_runtime.base.telemetry.wanted import endpoint_variable, missing, resource

if TYPE_CHECKING:
    from prometheus_client.core import Metric

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

"""Metrics of a service in the text format of Prometheus, and its state as JSON for `/state` and the live page."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.base.weight_options import WeightsState
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.recent import RecentService, name_of
from adaptive_runtime.server.served import DevicesReport, LoadReport, ServedModel


def state_report(state: ModelState, recent: RecentService, load: LoadReport, queue: dict[str, int]) -> dict[str, Any]:
    """The whole current state. Times are ages in seconds, so the clock of the reader does not matter."""
    now_s = time.monotonic()
    answers = [{"age_s": round(now_s - row.at_s, 3), **_without_time(row._asdict())} for row in recent.answers]
    decisions = [
        {"age_s": round(now_s - one.at_s, 1), **_without_time(one.model_dump())} for one in reversed(recent.decisions)
    ]
    return {
        "uptime_s": round(now_s - recent.started_s, 1),
        "model": _model(state),
        "load": load.model_dump(),
        "queue": queue,
        "outcomes": dict(recent.outcomes),
        "latency_ms": recent.percentiles_ms(),
        "answers": answers,
        "decisions": decisions,
    }


def _model(state: ModelState) -> dict[str, Any]:
    return {
        "serving": _variant(state.serving),
        "format": state.format,
        "standby": None if state.standby is None else _variant(state.standby),
        "warm": [name_of(one) for one in state.warm],
        "taken_out": dict(state.taken_out),
        "requests": state.requests,
        "switches": state.switches,
        "stood_in": state.stood_in,
        "latency_ms": state.latency_ms,
        "used_mib": state.used_mib,
        "budget_mib": state.budget_mib,
        "budget_ms": state.budget_ms,
        "weights": None if state.weights is None else _weights(state.weights),
        "rule": None if state.adapting is None else state.adapting.rule,
        "mu": None if state.adapting is None else state.adapting.mu,
    }


def _weights(state: WeightsState) -> dict[str, Any]:
    subnets = {digest: asdict(one) for digest, one in state.subnets.items()}
    return {"subnets": subnets, "left_out": state.left_out}


def _variant(variant: Variant) -> dict[str, Any]:
    return {"name": name_of(variant), **variant._asdict()}


def _without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "at_s"}


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("answered", "late", "rejected", "expired", "refused", "failed")
BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
PREFIX = "autotailor_"


class ServiceMetrics:
    """Counters and histograms of requests, and the state of model and load at the moment of a scrape."""

    def __init__(self, model: ServedModel, depth: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        text = "Requests by what became of them."
        self._outcomes = Counter(f"{PREFIX}requests", text, ["outcome"], registry=self._registry)
        text = "Samples by the SubNet, the exit and the format that answered them."
        self._samples = Counter(f"{PREFIX}samples", text, ["subnet", "exit", "format"], registry=self._registry)
        text = "Latency of requests in the model, by SubNet and format."
        self._latency_s = Histogram(
            f"{PREFIX}latency_seconds", text, ["subnet", "format"], buckets=BUCKETS_S, registry=self._registry
        )
        text = "Time that requests waited for their turn."
        self._waited_s = Histogram(f"{PREFIX}wait_seconds", text, buckets=BUCKETS_S, registry=self._registry)
        for outcome in OUTCOMES:
            self._outcomes.labels(outcome)
        self._registry.register(_NowCollector(model, depth))
        ProcessCollector(registry=self._registry)

    def count(self, outcome: str) -> None:
        """Count one request with this outcome."""
        self._outcomes.labels(outcome).inc()

    def observe(self, answer: ModelAnswer, waited_ms: float) -> None:
        """Count one answer."""
        self._latency_s.labels(answer.subnet, answer.formats[-1]).observe(answer.latency_ms / 1e3)
        self._waited_s.observe(waited_ms / 1e3)
        for labels in zip(answer.subnets, answer.exits, answer.formats, strict=True):
            self._samples.labels(*labels).inc()

    def families(self) -> Iterable[Metric]:
        """The current values of all metrics."""
        return self._registry.collect()

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)


class _NowCollector(Collector):
    def __init__(self, model: ServedModel, depth: Callable[[], int]) -> None:
        self._model, self._depth = model, depth

    def collect(self) -> Iterator[Metric]:
        """The current gauges."""
        state, load = self._model.state(), self._model.load.now
        mu = None if state.adapting is None else state.adapting.mu
        switches = CounterMetricFamily(f"{PREFIX}switches", "Changes of the SubNet that serves.")
        switches.add_metric([], state.switches)
        yield switches
        stood_in = CounterMetricFamily(
            f"{PREFIX}stood_in", "Runs that the coordinator answered, since other devices had not in time."
        )
        stood_in.add_metric([], state.stood_in)
        yield stood_in
        serving = GaugeMetricFamily(f"{PREFIX}serving", "What serves: 1.", labels=["subnet", "exit", "early", "format"])
        digest, exit, early, *_ = state.serving
        serving.add_metric([digest, exit or "", str(early).lower(), state.format], 1)
        yield serving
        for name, text, value in (
            ("queue_depth", "Requests that wait for their turn.", self._depth()),
            ("warm_variants", "Variants that start without loading.", len(state.warm)),
            ("taken_out_subnets", "SubNets that failed and serve no more.", len(state.taken_out)),
            ("memory_mebibytes", "What SubNets take, as measured after the latest loading.", state.used_mib),
            ("memory_budget_mebibytes", "What SubNets may take.", state.budget_mib),
            ("load", "Load index of the device, 0 to 1.", load.load),
            ("load_forecast", "Load index a second ahead.", load.forecast[0] if load.forecast else None),
            ("slow_down", "By which factor what serves is slower than predicted.", load.slow_down),
            ("mu", "Weight of the accuracy against energy, by the battery.", mu),
            ("stalled_sensors", "Sensors without values.", len(load.faults)),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"{PREFIX}{name}", text, value=value)
        if load.hit_rate is not None and load.hit_rate_by is not None:
            rate = GaugeMetricFamily(
                f"{PREFIX}cache_hit_rate", "Hits of the processor's caches, 0 to 1.", labels=["by"]
            )
            rate.add_metric([load.hit_rate_by], load.hit_rate)
            yield rate
        if state.weights is not None:
            yield from _of_weights(state.weights)
        if state.adapting is not None and state.adapting.rule is not None:
            rule = GaugeMetricFamily(f"{PREFIX}rule", "What says what is best: 1.", labels=["rule"])
            rule.add_metric([state.adapting.rule], 1)
            yield rule
        if self._model.devices is not None:
            yield from _of_devices(self._model.devices.now)


def _of_weights(state: WeightsState) -> Iterator[Metric]:
    """Metrics of adapting weights."""
    for name, text, values in (
        ("adapted_weights", "Whether adapted weights serve: 1.", [one.adapted for one in state.subnets.values()]),
        ("aligned_images", "Whether images are aligned: 1.", [one.aligned for one in state.subnets.values()]),
        (
            "drifting_images",
            "Whether images are unlike the source's: 1.",
            [one.drifting for one in state.subnets.values()],
        ),
        ("looked_at_images", "Images that were looked at.", [one.images for one in state.subnets.values()]),
    ):
        family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["subnet"])
        for digest, value in zip(state.subnets, values, strict=True):
            family.add_metric([digest], float(value))
        yield family
    yield GaugeMetricFamily(f"{PREFIX}left_out_images", "Images that nobody has looked at.", value=state.left_out)


def _of_devices(described: DevicesReport) -> Iterator[Metric]:
    """Metrics of plan and links of a SubNet over several devices."""
    changes = CounterMetricFamily(f"{PREFIX}plan_changes", "Changes of plan.")
    changes.add_metric([], described.changes)
    yield changes
    placed = GaugeMetricFamily(f"{PREFIX}placed_segments", "Segments on a device by the plan.", labels=["device"])
    for name in dict.fromkeys((COORDINATOR, *(one.name for one in described.devices), *described.plan)):
        placed.add_metric([name], described.plan.count(name))
    yield placed
    for name, text, values in (
        ("device_in", "Whether a device is in: 1.", [float(one.state == "in") for one in described.devices]),
        ("link_up_mbps", "Bandwidth to a device, Mbit/s.", [one.up_mbps for one in described.devices]),
        ("link_down_mbps", "Bandwidth from a device, Mbit/s.", [one.down_mbps for one in described.devices]),
        ("link_round_trip_ms", "Round trip to a device, ms.", [one.round_trip_ms for one in described.devices]),
    ):
        family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=["device"])
        for one, value in zip(described.devices, values, strict=True):
            if value is not None:
                family.add_metric([one.name], value)
        yield family

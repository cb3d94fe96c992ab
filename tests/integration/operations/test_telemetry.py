"""Metrics and spans by OpenTelemetry, sent to a receiver here; off unless its variables name an endpoint."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.documents import ROOT
from tests.support.fleet.served_registry import served_registry
from tests.support.operations.otlp_receiver import Received, receiver
from tests.support.runtime.fixtures import plain_bundle
from tests.support.runtime.service_process import AUTHORIZATION, INFER, TOKEN, images, served

__all__ = ["plain_bundle"]

HAS_EXPORTER = subprocess.run(
    [sys.executable, "-c", "import opentelemetry.exporter.otlp.proto.http"], capture_output=True
).returncode
needs_exporter = pytest.mark.skipif(HAS_EXPORTER != 0, reason="the extra telemetry is not installed")
WAIT_S = 300


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with receiver() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        yield found


def wait_for(told: Received, name: str, value: float) -> None:
    """Until a metric's points have a sum."""
    for _ in range(WAIT_S * 5):
        told.arrived.clear()
        metric = told.metrics.get(name)
        points = [] if metric is None else (metric.gauge.data_points or metric.sum.data_points)
        if sum(point.as_double or point.as_int for point in points) == value:
            return
        assert told.arrived.wait(WAIT_S), sorted(told.metrics)
    raise AssertionError(f"{name} is not {value}: {told.metrics.get(name)}")


@pytest.mark.long
@needs_exporter
def test_a_service_sends_what_its_requests_came_to_and_nothing_of_them(
    told: Received, plain_bundle: Path, tmp_path: Path
) -> None:
    with served(plain_bundle, tmp_path / "log") as service:
        row = {"name": "input", "datatype": "FP32", "shape": [1, 3, 16, 16], "data": images().ravel().tolist()}
        for _ in range(3):
            answer = service.http.post(INFER, json={"inputs": [row]})
            assert answer.status_code == 200, answer.text
        wait_for(told, "autotailor_requests", 3)
    assert "autotailor-service" in told.services
    latency = told.metrics["autotailor_latency_seconds"].histogram.data_points
    assert sum(point.count for point in latency) == 3
    assert all(len(point.bucket_counts) == len(point.explicit_bounds) + 1 for point in latency)
    assert sum(sum(point.bucket_counts) for point in latency) == 3
    assert {"autotailor_queue_depth", "autotailor_switches", "autotailor_samples"} <= set(told.metrics)
    assert not any(secret.encode() in body for secret in (TOKEN, *AUTHORIZATION.values()) for body in told.bodies)


@pytest.mark.long
@needs_exporter
def test_a_registry_sends_how_many_devices_and_rollouts_there_are(
    told: Received, plain_bundle: Path, tmp_path: Path
) -> None:
    with served_registry(tmp_path, plain_bundle) as service:
        enrolled = service.enrolled()
        wait_for(told, "autotailor_fleet_devices", 1)
        wait_for(told, "autotailor_fleet_bundles", 1)
        wait_for(told, "autotailor_fleet_pulled_devices", 1)
    assert "autotailor-registry" in told.services
    assert not any(secret.encode() in body for secret in (enrolled.token, enrolled.device) for body in told.bodies)


RUN = """
from contextlib import suppress
from adaptive_runtime.base.telemetry import span

with span("stage base", stage="base", key="0123"):
    with suppress(ValueError), span("device work", device="ncnn"):
        raise ValueError("a path, or an input")
"""


@needs_exporter
def test_spans_lie_inside_of_each_other_and_tell_no_message_of_an_error(told: Received) -> None:
    subprocess.run([sys.executable, "-c", RUN], check=True, timeout=WAIT_S)
    spans = {span.name: span for span in told.spans}
    stage, device = spans["stage base"], spans["device work"]
    assert device.parent_span_id == stage.span_id
    assert device.trace_id == stage.trace_id
    assert {one.key: one.value.string_value for one in stage.attributes} == {
        "autotailor.stage": "base",
        "autotailor.key": "0123",
    }
    assert device.status.message == "ValueError"
    assert not device.events
    assert not any(b"a path, or an input" in body for body in told.bodies)


MEASURED = """
from flows.config import DeviceProfile
from flows.pipeline.devices import Devices
from tests.support.agents.agent_models import addition

jobs = [addition("onnxruntime", str(number)) for number in range(3)]
with Devices({"board": DeviceProfile(backend="onnxruntime")}) as devices, devices.exclusive("board") as client:
    assert len(list(client.measure(jobs))) == 3
"""


@pytest.mark.long
@needs_exporter
def test_a_batch_of_models_is_a_span_inside_of_the_work_of_its_device(told: Received) -> None:
    subprocess.run([sys.executable, "-c", MEASURED], check=True, timeout=WAIT_S)
    spans = {span.name: span for span in told.spans}
    work, batch = spans["device work"], spans["device batch"]
    assert batch.parent_span_id == work.span_id
    assert work.start_time_unix_nano <= batch.start_time_unix_nano < batch.end_time_unix_nano <= work.end_time_unix_nano
    found = {one.key: one.value.string_value or one.value.int_value for one in batch.attributes}
    assert found == {"autotailor.device": "board", "autotailor.models": 3}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"},
    ],
    ids=["nothing", "disabled", "without traces", "metrics alone"],
)
def test_nothing_is_imported_or_sent_where_nobody_asks_for_it(variables: dict[str, str]) -> None:
    code = f"{RUN}\nimport sys; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment = clean | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_packages_are_told_once_and_stop_nothing(tmp_path: Path) -> None:
    code = f"import sys; sys.modules['opentelemetry.exporter'] = None\n{RUN}{RUN}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("OTEL_EXPORTER_OTLP_ENDPOINT is set, and") == 1
    assert "pip install -e '.[telemetry]'" in done.stderr

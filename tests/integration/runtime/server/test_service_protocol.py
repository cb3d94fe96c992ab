"""A running service speaks the Open Inference Protocol v2, and refuses everything else in one line."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import adaptive_runtime
from adaptive_runtime.server.protocol import DATATYPES, LENGTH_HEADER
from tests.support.runtime.service_process import INFER, SAMPLE, Served, body, error_of, images, refused, served

MAX_BODY_MIB = 1
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def service(plain_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("log") / "log"
    with served(plain_bundle, log, "--max-body-mib", str(MAX_BODY_MIB), "--deadline-ms", "300000") as found:
        yield found


@pytest.fixture(scope="module")
def expected(plain_bundle: Path) -> adaptive_runtime.ModelAnswer:
    """The answer of the same bundle in this process."""
    with adaptive_runtime.load(plain_bundle) as model:
        return model.infer(images(3))


def json_request(**changes: Any) -> dict[str, Any]:
    """A request in JSON; changes: of its input."""
    x = images()
    row = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return {"inputs": [row | changes]}


def outputs(response: httpx.Response) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The head of an answer and its outputs, read by the protocol's own text and nothing of the house but datatypes."""
    assert response.status_code == 200, response.text
    length = int(response.headers.get(LENGTH_HEADER, len(response.content)))
    head, rest = json.loads(response.content[:length]), response.content[length:]
    found = {}
    for row in head["outputs"]:
        dtype = DATATYPES[row["datatype"]]
        size = row.get("parameters", {}).get("binary_data_size")
        values = np.array(row["data"], dtype) if size is None else np.frombuffer(rest[:size], dtype)
        rest = rest[size or 0 :]
        found[row["name"]] = values.reshape(row["shape"])
    assert not rest
    return head, found


def test_the_server_says_what_it_is_and_that_it_is_well(service: Served) -> None:
    server = service.http.get("/v2").json()
    assert set(server) == {"name", "version", "extensions"}
    assert "binary_tensor_data" in server["extensions"]
    assert service.http.get("/v2/health/live").json() == {"live": True}
    assert service.http.get("/v2/health/ready").json() == {"ready": True}


def test_the_model_says_what_it_takes_and_gives(service: Served) -> None:
    found = service.http.get("/v2/models/model").json()
    (version,) = found["versions"]
    assert found["platform"] == "autotailor_onnx"
    assert found["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, *SAMPLE]}]
    assert [row["name"] for row in found["outputs"]] == ["logits", "classes", "confidence"]
    assert service.http.get(f"/v2/models/model/versions/{version}").json() == found
    ready = {"name": "model", "ready": True}
    assert service.http.get("/v2/models/model/ready").json() == ready
    assert service.http.get(f"/v2/models/model/versions/{version}/ready").json() == ready


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_answers_are_those_of_the_model(
    service: Served, expected: adaptive_runtime.ModelAnswer, binary_in: bool, binary_out: bool
) -> None:
    x = images(3)
    if binary_in:
        response = service.http.post(INFER, **body(x, binary_data_output=binary_out))
    else:
        request = json_request(shape=list(x.shape), data=x.tolist()) | {
            "parameters": {"binary_data_output": binary_out}
        }
        response = service.http.post(INFER, json=request)
    assert (LENGTH_HEADER in response.headers) == binary_out
    head, found = outputs(response)
    assert np.abs(found["logits"] - expected.logits).max() <= TOLERANCE * np.abs(expected.logits).max()
    assert found["classes"].tolist() == expected.classes.tolist()
    assert np.abs(found["confidence"] - expected.confidence).max() <= TOLERANCE
    assert head["parameters"]["subnet"] == expected.subnet
    assert head["parameters"]["exit"] == expected.exits[0]
    assert head["parameters"]["format"] == "onnx"
    assert head["parameters"]["latency_ms"] > 0
    assert "late_ms" not in head["parameters"]


def test_only_the_outputs_that_were_asked_for_are_given_each_in_its_form(service: Served) -> None:
    wanted = [{"name": "classes"}, {"name": "logits", "parameters": {"binary_data": True}}]
    head, found = outputs(service.http.post(INFER, json=json_request() | {"id": "seven", "outputs": wanted}))
    assert head["id"] == "seven"
    assert list(found) == ["classes", "logits"]
    assert "data" in head["outputs"][0]
    assert "data" not in head["outputs"][1]


def test_a_version_answers_as_the_model_does(service: Served) -> None:
    version = service.http.get("/v2/models/model").json()["versions"][0]
    head, _ = outputs(service.http.post(f"/v2/models/model/versions/{version}/infer", json=json_request()))
    assert head["model_version"] == version


DEEP = "[" * 100_000
MALFORMED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "EOF"),
    "no object": (b"[]", "object"),
    "deep JSON": (f'{{"inputs":[{{"name":"input","data":{DEEP}'.encode(), "recursion"),
    "no inputs": ({"inputs": []}, "inputs: none"),
    "two inputs": ({"inputs": json_request()["inputs"] * 2}, "inputs: input, input"),
    "another input": (json_request(name="image"), "inputs: image; allowed: one, of the name 'input'"),
    "a typing error": (json_request() | {"parameters": {"deadlin_ms": 5}}, "parameters.deadlin_ms"),
    "a deadline of text": (json_request() | {"parameters": {"deadline_ms": "5"}}, "parameters.deadline_ms"),
    "a deadline of zero": (json_request() | {"parameters": {"deadline_ms": 0}}, "parameters.deadline_ms"),
    "another datatype": (json_request(datatype="FP64"), "datatype FP64; allowed: FP32"),
    "an unknown datatype": (json_request(datatype="F" * 5000), "datatype FFFF"),
    "another shape": (json_request(shape=[1, 3, 16, 15]), "[1, 3, 16, 15]; allowed: [N, 3, 16, 16], N from 1"),
    "no samples": (json_request(shape=[0, *SAMPLE], data=[]), "[0, 3, 16, 16]"),
    "a negative shape": (json_request(shape=[-1, *SAMPLE]), "[-1, 3, 16, 16]"),
    "two negative sizes": (json_request(shape=[1, 3, -16, -16]), "[1, 3, -16, -16]"),
    "2^63 samples": (json_request(shape=[2**63, *SAMPLE]), "9223372036854775808"),
    "2^63 in each size": (json_request(shape=[2**63] * 4), "9223372036854775808"),
    "a thousand sizes": (json_request(shape=[1] * 1000), "shape [1, 1"),
    "a shape of fractions": (json_request(shape=[1.5, *SAMPLE]), "shape"),
    "too few values": (json_request(data=[0.0]), "data of shape [1]"),
    "no values": (json_request(data=None), "no such list"),
    "text as values": (json_request(data=["0"] * 768), "no such list"),
    "a base64 string": (json_request(data="AAAA" * 10), "no such list"),
    "binary values that are not there": (
        json_request(data=None, parameters={"binary_data_size": 3072}),
        "3072 bytes in all; the body has 0",
    ),
    "a negative binary size": (json_request(data=None, parameters={"binary_data_size": -1}), "binary_data_size"),
    "NaN": (json.dumps(json_request(data=[float("nan")] * 768)).encode(), "NaN or infinite"),
    "an infinite value": (json.dumps(json_request(data=[1e999] * 768)).encode(), "NaN or infinite"),
    "another output": (json_request() | {"outputs": [{"name": "logit"}]}, "output 'logit'; allowed: logits"),
    "an output twice": (json_request() | {"outputs": [{"name": "logits"}] * 2}, "twice"),
}


@pytest.mark.parametrize(("content", "line"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_request_is_one_line_and_the_next_one_is_answered(service: Served, content: Any, line: str) -> None:
    sent = {"content": content} if isinstance(content, bytes) else {"json": content}
    response = service.http.post(INFER, **sent)
    assert response.status_code == 400
    told = error_of(response)
    assert line in told
    assert len(told) < 300
    assert service.http.post(INFER, **body(images())).status_code == 200


@pytest.mark.parametrize("length", ["x", "-1", "1" * 30, "99999999", "1e3", ""])
def test_a_wrong_length_of_the_json_is_one_line(service: Served, length: str) -> None:
    sent = body(images())
    response = service.http.post(INFER, content=sent["content"], headers={LENGTH_HEADER: length})
    assert response.status_code == 400
    error_of(response)


def test_nan_in_binary_values_is_one_line(service: Served) -> None:
    response = service.http.post(INFER, **body(images(value=np.nan)))
    assert response.status_code == 400
    assert "NaN or infinite" in error_of(response)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_tensor_is_refused_before_it_is_read(service: Served, chunked: bool) -> None:
    content = b"x" * (MAX_BODY_MIB * 2**20 + 1)
    response = service.http.post(INFER, content=iter([content]) if chunked else content)
    assert response.status_code == 413
    assert f"at most {MAX_BODY_MIB * 2**20} bytes" in error_of(response)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/model/versions/0", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("GET", INFER, 405),
        ("GET", "/v2/", 404),
        ("GET", "/docs", 404),
        ("POST", "/v2/repository/index", 404),
        ("GET", "/../bundle.json", 404),
        ("GET", "/page.js/..%2f..%2frunning.py", 404),
    ],
)
def test_what_is_not_there_is_one_line(service: Served, method: str, path: str, status: int) -> None:
    response = service.http.request(method, path)
    assert response.status_code == status
    error_of(response)


def test_metrics_count_requests_by_outcome_subnet_and_exit(service: Served) -> None:
    def value(name: str, **labels: str) -> float:
        families = text_string_to_metric_families(service.http.get("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    digest = service.state()["model"]["serving"]["digest"]
    before = {name: value("autotailor_requests_total", outcome=name) for name in ("answered", "refused")}
    samples = value("autotailor_samples_total", subnet=digest, exit="last")
    service.http.post(INFER, **body(images(5)))
    service.http.post(INFER, content=b"{")
    assert value("autotailor_requests_total", outcome="answered") == before["answered"] + 1
    assert value("autotailor_requests_total", outcome="refused") == before["refused"] + 1
    assert value("autotailor_samples_total", subnet=digest, exit="last") == samples + 5
    assert value("autotailor_latency_seconds_count", subnet=digest) == before["answered"] + 1
    assert value("autotailor_serving", subnet=digest, format="onnx") == 1
    assert value("autotailor_queue_depth") == 0
    assert value("autotailor_taken_out_subnets") == 0
    assert value("autotailor_memory_mebibytes") > 0
    assert value("process_resident_memory_bytes") > 0


def test_the_state_has_what_the_page_shows(service: Served) -> None:
    service.http.post(INFER, **body(images()))
    state = service.state()
    assert state["answers"][-1]["subnet"] == state["model"]["serving"]["digest"]
    assert state["latency_ms"]["p99"] >= state["latency_ms"]["p50"] > 0
    assert [one["step"] for one in state["decisions"]] == ["start"]
    assert state["queue"] == {"depth": 0, "places": 64, "workers": 1}


@pytest.mark.few("words0-required: folder")
@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no bundle": (["serve"], "required: folder"),
        "another option": (["serve", "{bundle}", "--bugdet-ms", "5"], "unrecognized arguments: --bugdet-ms"),
        "half an option": (["serve", "{bundle}", "--budget", "5"], "unrecognized arguments: --budget"),
        "no port": (["serve", "{bundle}", "--port", "70000"], "invalid port (0 to 65535) value: '70000'"),
        "no queue": (["serve", "{bundle}", "--queue", "0"], "invalid positive whole number value: '0'"),
        "no deadline": (["serve", "{bundle}", "--deadline-ms", "nan"], "invalid number above 0 value: 'nan'"),
        "no name": (["serve", "{bundle}", "--model-name", "a/b"], "invalid name (letters"),
        "no folder": (["serve", "{bundle}-other"], "bundle-other"),
        "not alone": (["serve", "{bundle}", "--host", "0.0.0.0"], "not a loopback address; it takes --tls-cert"),
        "no port to bind": (
            ["serve", "{bundle}", "--socket", "{bundle}/socket", "--host", "0.0.0.0"],
            "--host: is for clients by TCP, and --socket has none; give --port, too",
        ),
        "half of TLS": (["serve", "{bundle}", "--tls-cert", "c.pem"], "--tls-cert and --tls-key: one without"),
        "no token": (["serve", "{bundle}", "--token-file", "{bundle}/none"], "cannot be read"),
        "no state": (
            ["serve", "{bundle}", "--port", "0", "--state", "/dev/null/x"],
            "--state '/dev/null/x': cannot be",
        ),
    }.values(),
)
def test_bad_options_are_one_line(plain_bundle: Path, words: list[str], line: str) -> None:
    told = refused(*(word.format(bundle=plain_bundle) for word in words))
    assert line in told
    assert re.match(r"autotailor-runtime( serve)?: ", told)

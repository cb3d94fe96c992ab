"""The relay of all devices of a registry: real agents pull by their own tokens, and nobody gets what is another one's."""

from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from adaptive_runtime.fleet import Enrolled
from profiling_agents.client import AgentClient, AgentError, MeasureSettings
from profiling_agents.serving import service as agent_service
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.fleet.served_registry import RELAY_TOKEN, ServedRegistry, bearer

QUICK = MeasureSettings(time_cap_ms=5.0, warmup_ms=0.5, min_blocks=1, patience=0.0)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
AGENT_ROUTES = [route.replace("{number}", "0") for route in agent_service.ROUTES]
ABSENT = ["/", "/docs", "/v1", "/devices", "/v1/lease", "/v1/pull/", "/v1/enrolments", "//v1/pull"]


class PulledFleet(NamedTuple):
    """A relay, and two devices of which the first one's agent pulls."""

    url: str
    first: Enrolled
    second: Enrolled

    def of(self, device: Enrolled) -> str:
        """The device's address for clients."""
        return f"{self.url}/devices/{device.device}"


@pytest.fixture(scope="module")
def pulled(service: ServedRegistry, relay: str) -> Iterator[PulledFleet]:
    first, second = service.enrolled(), service.enrolled()
    with processes.started(["--backend", "ncnn", "--pull", relay], token=first.token):
        yield PulledFleet(relay, first, second)


def test_a_device_is_measured_through_the_relay_by_its_number(pulled: PulledFleet) -> None:
    with AgentClient(pulled.of(pulled.first), RELAY_TOKEN) as client, client.lease():
        assert client.capabilities().backend == "ncnn"
        results = list(client.measure([models.convolution("ncnn", f"{index}") for index in range(3)], QUICK))
    assert [(one.key, one.state) for one in results] == [("0", "ok"), ("1", "ok"), ("2", "ok")]
    with (
        AgentClient(pulled.of(pulled.second), RELAY_TOKEN) as client,
        pytest.raises(AgentError, match="has not pulled"),
    ):
        client.capabilities()


@pytest.mark.long_cases("/v1/pull")
@pytest.mark.parametrize("path", [*AGENT_ROUTES, "/v1/pull", "/v1/answers", *ABSENT])
def test_nothing_of_the_relay_answers_without_the_token_of_its_side(
    pulled: PulledFleet, service: ServedRegistry, path: str
) -> None:
    below = f"/devices/{pulled.first.device}{path}"
    with httpx.Client(base_url=pulled.url, timeout=120) as http:
        for method in METHODS:
            for headers in ({}, bearer("wrong" * 8), bearer(service.token())):
                assert {http.request(method, one, headers=headers).status_code for one in (path, below)} == {401}
            told = {http.request(method, one, headers=bearer(pulled.second.token)).status_code for one in (below,)}
            assert told <= {401, 404, 405}, "a device is no client, not even of itself"
            if path in ("/v1/pull", "/v1/answers"):
                assert http.request(method, path, headers=bearer(RELAY_TOKEN)).status_code in (401, 405)
    with httpx.Client(base_url=pulled.url, headers=bearer(RELAY_TOKEN), timeout=120) as http:
        for headers in ({"Host": "rebound.example"}, {"Origin": "http://page.example"}):
            assert http.get(below, headers=headers).status_code == 403
        if path in ABSENT:
            assert {http.get(one).status_code for one in (path, below)} <= {401, 404, 405}


@pytest.mark.long
def test_a_device_answers_no_request_of_another_one(pulled: PulledFleet) -> None:
    headers = bearer(pulled.second.token) | {"Request": "0" * 32}
    answer = httpx.post(f"{pulled.url}/v1/answers", headers=headers, content=b"", timeout=120)
    assert (answer.status_code, answer.json()["error"]) == (410, "nobody waits for this answer")
    pull = httpx.get(f"{pulled.url}/v1/pull", headers=bearer(pulled.second.token), timeout=120)
    assert pull.status_code == 204
    with AgentClient(pulled.of(pulled.first), RELAY_TOKEN) as client:
        assert client.capabilities().backend == "ncnn"


@pytest.mark.long
def test_large_models_go_to_a_device_and_larger_ones_to_none(pulled: PulledFleet) -> None:
    with AgentClient(pulled.of(pulled.first), RELAY_TOKEN) as client:
        large = models.convolution("ncnn", "large", channels_in=600, channels_out=600, size=2)
        assert len(large.files[1]) > 12 << 20
        (result,) = client.measure([large], QUICK)
    assert result.state == "ok"
    url = f"{pulled.of(pulled.first)}/v1/jobs"
    assert httpx.post(url, headers=bearer(RELAY_TOKEN), content=bytes(2 << 20), timeout=120).status_code == 413

"""A running service behind TLS: it answers who trusts its certificate, and nobody else."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

import adaptive_runtime
from tests.integration.agents.test_agents_cli import write_certificate
from tests.support.runtime.service_process import AUTHORIZATION, INFER, Served, body, by_socket, images, served

TOLERANCE = 1e-5


class Protected(NamedTuple):
    """A service on all addresses of this machine. url: on the one of its certificate."""

    service: Served
    url: str
    certificate: Path
    socket: Path

    def client(self) -> httpx.Client:
        """One that trusts the certificate."""
        trusts = ssl.create_default_context(cafile=self.certificate)
        return httpx.Client(base_url=self.url, verify=trusts, headers=AUTHORIZATION, timeout=300)


@pytest.fixture(scope="module")
def protected(plain_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = write_certificate(folder)
    path = folder / "socket"
    options = ("--host", "0.0.0.0", "--tls-cert", str(certificate), "--tls-key", str(key), "--socket", str(path))
    with served(plain_bundle, folder / "log", *options) as service:
        assert service.url.startswith("https://0.0.0.0:")
        yield Protected(service, service.url.replace("0.0.0.0", "127.0.0.1"), certificate, path)
        assert service.lines() == []


def test_a_request_over_tls_is_answered(protected: Protected, plain_bundle: Path) -> None:
    x = images(2)
    with protected.client() as http:
        answer = http.post(INFER, **body(x)).raise_for_status().json()
    logits = next(one for one in answer["outputs"] if one["name"] == "logits")
    with adaptive_runtime.load(plain_bundle) as model:
        expected = model.infer(x)
    assert answer["parameters"]["subnet"] == expected.subnet
    found = np.array(logits["data"], np.float32).reshape(logits["shape"])
    assert np.abs(found - expected.logits).max() <= TOLERANCE * np.abs(expected.logits).max()


def test_over_tls_the_token_is_asked_for_too(protected: Protected) -> None:
    with protected.client() as http:
        for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
            assert http.post(INFER, **{**body(images()), "headers": headers}).status_code == 401


def test_the_unix_socket_beside_it_needs_neither_tls_nor_the_token(protected: Protected) -> None:
    with by_socket(protected.socket) as http:
        assert http.post(INFER, **body(images())).status_code == 200


def test_a_client_that_does_not_trust_the_certificate_brings_no_request(protected: Protected) -> None:
    with protected.client() as http:
        before = http.get("/state").raise_for_status().json()["outcomes"]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.post(protected.url + INFER, **body(images()), timeout=300)
        assert http.get("/state").raise_for_status().json()["outcomes"] == before


def test_a_request_without_tls_is_not_answered(protected: Protected) -> None:
    address = protected.url.removeprefix("https://")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}/v2", headers=AUTHORIZATION, timeout=300)
    host, port = address.split(":")
    request = f"GET /v2 HTTP/1.1\r\nHost: {address}\r\nAuthorization: {AUTHORIZATION['Authorization']}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=300) as plain:
        plain.sendall(request.encode())
        assert b"HTTP" not in plain.recv(1000)
    with protected.client() as http:
        assert http.get("/v2").status_code == 200

"""The Unix socket of a running service: the same answers as by TCP, for its user alone, also without a port."""

import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

import adaptive_runtime
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.server.unix_socket import listening
from tests.support.runtime.fixtures import LocalServed
from tests.support.runtime.service_process import (
    INFER,
    ask,
    body,
    by_socket,
    error_of,
    images,
    logits_of,
    refused,
    served,
)

NOBODY = 65534


def outcomes(local: LocalServed) -> Counter[str]:
    return Counter(local.service.state()["outcomes"])


def test_answers_are_those_by_tcp_and_of_the_model_to_the_last_bit(local: LocalServed) -> None:
    x = images(3)
    before = outcomes(local)
    with local.client() as client:
        logits, parameters = logits_of(client, x)
    assert outcomes(local) - before == {"answered": 1}
    by_tcp, _ = logits_of(local.service.http, x)
    with adaptive_runtime.load(local.bundle) as model:
        expected = model.infer(x)
    assert np.array_equal(logits, by_tcp)
    assert np.array_equal(logits, expected.logits)
    assert (parameters["subnet"], parameters["exit"]) == (expected.subnet, expected.exits[0])
    assert local.service.state()["answers"][-1]["subnet"] == parameters["subnet"]


def test_a_named_subnet_answers_one_request_by_either_way(local: LocalServed) -> None:
    x = images(2)
    with adaptive_runtime.load(local.bundle) as model, local.client() as client:
        _, parameters = logits_of(client, x)
        serving = parameters["subnet"]
        (other,) = (one.digest for one in model.subnets if one.digest != serving)
        expected = model.infer(x, subnet=other).logits
        for http in (client, local.service.http):
            logits, parameters = logits_of(http, x, subnet=other)
            assert np.array_equal(logits, expected)
            assert parameters["subnet"] == other
            assert logits_of(http, x)[1]["subnet"] == serving
        response = client.post(INFER, **body(x, subnet="none"))
    assert local.service.state()["model"]["switches"] == 0
    assert response.status_code == 404
    assert f"subnet 'none'; allowed: {serving}" in error_of(response)


def test_without_the_token_the_socket_answers_and_the_port_does_not(local: LocalServed) -> None:
    with local.client() as client, httpx.Client(base_url=local.service.url, timeout=300) as stranger:
        for path in ("/v2", "/v2/models/model", "/state", "/metrics", "/"):
            assert client.get(path).status_code == 200
        assert stranger.get("/state").status_code == 401
        assert stranger.post(INFER, **body(images())).status_code == 401


def test_by_the_socket_any_host_is_accepted_and_pages_of_other_sites_are_refused(local: LocalServed) -> None:
    with local.client() as client:
        assert client.get("/v2", headers={"Host": "any.name"}).status_code == 200
        response = client.get("/v2", headers={"Origin": "https://elsewhere.example"})
    assert response.status_code == 403
    assert "Origin header" in error_of(response)


@contextmanager
def as_user(user: int) -> Iterator[None]:
    own = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_the_socket_is_of_its_user_alone(local: LocalServed) -> None:
    assert stat.S_IMODE(local.path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as stranger, as_user(NOBODY), pytest.raises(PermissionError):
        stranger.connect(str(local.path))


def test_a_socket_is_made_where_it_can_be_and_where_not_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):  # the second time in the place of a stale one
        with listening(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with (
                pytest.raises(AdaptiveError, match="another program answers there; end it, or choose"),
                listening(path),
            ):
                pass
        assert not path.exists()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    path.unlink()
    path.write_text("kept")
    with pytest.raises(AdaptiveError, match=f"--socket '{path}': exists, and is no socket; choose"), listening(path):
        pass
    assert path.read_text() == "kept"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(AdaptiveError, match="exists, and is no socket"), listening(tmp_path / "link"):
        pass
    with pytest.raises(AdaptiveError, match="cannot be made"), listening(tmp_path / "none" / "socket"):
        pass
    with pytest.raises(AdaptiveError, match=r"cannot be made .*too long"), listening(tmp_path / ("x" * 108)):
        pass


@pytest.mark.long
def test_services_do_not_take_the_socket_of_another_one(local: LocalServed) -> None:
    told = refused("serve", str(local.bundle), "--socket", str(local.path))
    assert f"--socket '{local.path}': another program answers there" in told
    with local.client() as client:
        assert client.get("/v2").status_code == 200


@pytest.mark.long
def test_without_a_port_it_answers_by_the_socket_alone_and_the_next_one_takes_that_of_a_killed_one(
    plain_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with served(plain_bundle, tmp_path / "log", by=path) as service:
        assert service.url == f"unix:{path}"
        assert psutil.Process(service.process.pid).net_connections("inet") == []
        before, _ = logits_of(service.http, images())
        service.process.kill()
        service.process.wait()
    assert path.is_socket(), "killed, it cannot tidy up"
    with by_socket(path) as client, pytest.raises(httpx.ConnectError):
        client.get("/v2")
    with served(plain_bundle, tmp_path / "log2", by=path) as service:
        assert np.array_equal(logits_of(service.http, images())[0], before)
        assert ask(service, images())["subnet"]
        service.process.terminate()
        assert service.process.wait(60) == 0
        assert not path.exists()

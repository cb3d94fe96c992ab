"""A service on a socket, and clients without a token, without patience, or without an end of their handshake."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from profiling_agents.network.endpoint import Endpoint
from profiling_agents.network.guard import HEAD_LIMIT_S, GuardRules
from profiling_agents.network.server import http_server

TOKEN = {"Authorization": "Bearer token"}
CONNECTIONS = 4


async def size(request: Request) -> PlainTextResponse:
    """How many bytes came."""
    return PlainTextResponse(str(len(await request.body())))


@contextlib.contextmanager
def served(certificate: Path | None = None) -> Iterator[socket.socket]:
    """The listening socket of a service."""
    app = Starlette(routes=[Route("/size", size, methods=["GET", "POST"])])
    network = Endpoint(
        host="127.0.0.1",
        port=0,
        token=None,
        insecure_bind=False,
        tls_cert=certificate,
        tls_key=certificate,
        allowed_hosts=(),
        stop_with_stdin=False,
        silence_limit_s=0,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = http_server(network, app, "token", GuardRules(connections=CONNECTIONS))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield listener
        finally:
            server.should_exit = True
            thread.join()


def own_certificate(folder: Path) -> Path:
    """A certificate of this machine and its key, in one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "own.pem"
    file.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return file


def test_silent_connections_take_no_place_of_the_holder_of_the_token() -> None:
    with served() as listener, contextlib.ExitStack() as stack:
        url = "http://{}:{}/size".format(*listener.getsockname())
        for _ in range(100):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        assert [httpx.get(url, headers=TOKEN).status_code for _ in range(20)] == [200] * 20
        clients = [stack.enter_context(httpx.Client(headers=TOKEN)) for _ in range(CONNECTIONS + 1)]
        codes = [client.get(url).status_code for client in clients]
        assert codes == [*[200] * CONNECTIONS, 503], "those with a token have a cap of their own"
        assert httpx.get(url).status_code == 401


def test_a_half_handshake_ends_in_seconds(tmp_path: Path) -> None:
    certificate = own_certificate(tmp_path)
    with served(certificate) as listener:
        with socket.create_connection(listener.getsockname()) as half:
            half.settimeout(3 * HEAD_LIMIT_S)
            half.sendall(b"\x16\x03\x01")
            started_s = time.monotonic()
            with contextlib.suppress(ConnectionError):
                assert half.recv(1) == b""
            assert time.monotonic() - started_s < 2 * HEAD_LIMIT_S
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = "https://{}:{}/size".format(*listener.getsockname())
        assert httpx.get(url, headers=TOKEN, verify=context).status_code == 200


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_fault(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with served() as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port)) as client:
            head = f"POST /size HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer token\r\nContent-Length: 100\r\n\r\n"
            client.sendall(head.encode() + b"few bytes")
            time.sleep(0.3)
        time.sleep(0.3)
        assert httpx.get(f"http://{host}:{port}/size", headers=TOKEN).status_code == 200
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert caplog.records == []

"""One running agent: claims cores, binds, starts the child, serves until a signal or its parent's end."""

import asyncio
import ipaddress
import os
import platform
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from profiling_agents import machine
from profiling_agents.cores import Claim, claim
from profiling_agents.limits import Limits
from profiling_agents.local import READY
from profiling_agents.messages import MIB, AgentError, Capabilities, Precision, RuntimeInfo
from profiling_agents.runner import Runner
from profiling_agents.service import Agent, create_app
from profiling_agents.store import ModelFiles
from profiling_agents.worker import WorkerSettings

PROTOCOL = 2
MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 32 << 10
STORE_FACTOR = 4
"""The model store holds so many models of the largest size."""
MAX_TENSORS_MIB = 256
SHUTDOWN_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything the command line decides."""

    backend: str
    threads: int
    precision: Precision
    cores: tuple[int, ...] | None
    host: str
    port: int
    token: str | None
    tls_cert: Path | None
    tls_key: Path | None
    insecure_bind: bool
    allowed_hosts: tuple[str, ...]
    limits: Limits
    max_model_mib: int
    stop_with_stdin: bool


def serve(options: ServerOptions) -> None:
    """Run until stopped; AgentError when it cannot start."""
    _check_bind(options)
    with _private_folder() as folder, _bound(options.host, options.port) as listener:
        claimed = claim(options.threads, options.cores)
        token = options.token or _new_token(folder)
        asyncio.run(_serve(options, folder, listener, claimed, token))


async def _serve(options: ServerOptions, folder: Path, listener: socket.socket, claimed: Claim, token: str) -> None:
    settings = WorkerSettings(
        backend=options.backend,
        threads=options.threads,
        precision=options.precision,
        cores=claimed.cores,
        limits=options.limits,
        max_payload_bytes=MAX_TENSORS_MIB * MIB,
    )
    runner = Runner(settings, folder)
    try:
        capabilities = _capabilities(options, claimed, await runner.start())
        models = ModelFiles(folder, STORE_FACTOR * options.max_model_mib * MIB)
        agent = Agent(capabilities, runner, models)
        server = _http_server(options, agent, token)
        listener.listen(MAX_CONNECTIONS)
        if options.stop_with_stdin:
            threading.Thread(target=_stop_with_stdin, args=(server,), daemon=True).start()
        scheme = "https" if options.tls_cert else "http"
        print(f"{READY}{scheme}://{_netloc(listener)}", flush=True)
        await _serve_and_work(server, listener, agent)
    finally:
        await runner.close()


async def _serve_and_work(server: uvicorn.Server, listener: socket.socket, agent: Agent) -> None:
    """Serve until stopped, with the queue at work beside it; a fault of the queue ends both."""
    work = asyncio.create_task(agent.jobs.work())
    work.add_done_callback(lambda _: setattr(server, "should_exit", True))
    try:
        await server.serve(sockets=[listener])
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


def _http_server(options: ServerOptions, agent: Agent, token: str) -> uvicorn.Server:
    any_address = options.host in ("", "0.0.0.0", "::")
    own = ("127.0.0.1", "localhost", "::1") if any_address or _is_loopback(options.host) else ()
    hosts = frozenset(name.lower() for name in (*own, options.host, *options.allowed_hosts) if name)
    app = create_app(agent, token=token, hosts=hosts, any_address=any_address)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"--tls-cert '{options.tls_cert}': cannot be used with its key ({error})") from error
    return uvicorn.Server(config)


def _capabilities(options: ServerOptions, claimed: Claim, runtime: RuntimeInfo) -> Capabilities:
    cores = claimed.cores
    pinned = sys.platform == "linux"
    return Capabilities.model_validate(
        runtime.model_dump()
        | {
            "protocol": PROTOCOL,
            "threads": options.threads,
            "cores": cores,
            "cores_shared": claimed.shared,
            "pinned": pinned,
            "cpu_model": machine.cpu_model(),
            "machine": platform.machine(),
            "system": platform.platform(),
            "governor": machine.governor(cores[0]),
            "frequency_mhz": machine.frequency_mhz(cores[0]),
            "frequency_state": machine.frequency_state(cores[0]),
            "memory_mib": machine.memory_mib(),
            "memory_limit_mib": options.limits.memory_mib,
            "cpu_limit_s": options.limits.cpu_s,
            "wall_limit_s": options.limits.wall_s,
            "max_model_mib": options.max_model_mib,
            "max_tensors_mib": MAX_TENSORS_MIB,
            "fingerprint": machine.fingerprint(runtime, cores, options.threads, pinned),
        }
    )


def _check_bind(options: ServerOptions) -> None:
    """Refuse to leave this machine without a token of the user's and TLS, unless told to."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise AgentError("--tls-cert and --tls-key: one without the other; give both")
    if _is_loopback(options.host) or options.insecure_bind:
        return
    if options.tls_cert is None or options.token is None:
        raise AgentError(
            f"--host {options.host}: not a loopback address; it takes --tls-cert, --tls-key and a token "
            "(--token-file), or --insecure-bind (see --help for what that means)"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound, not yet listening socket; AgentError for an occupied port or an address that is not here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off Nagle's delay (40 ms a request) only when it is.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise AgentError(
                f"--host {host} --port {port}: {error.strerror or error}; choose another with --port (0: any free one)"
            ) from error
        yield listener


def _netloc(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A 0700 folder for models, log and token; gone when the agent ends, also by SIGTERM."""
    previous = signal.signal(signal.SIGTERM, _exit)
    folder = Path(tempfile.mkdtemp(prefix="autotailor-agent-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        signal.signal(signal.SIGTERM, previous)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _new_token(folder: Path) -> str:
    """A random token, written to a 0600 file whose name is printed."""
    token = os.urandom(32).hex()
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
        stream.write(token + "\n")
    print(f"agent token: {path}", flush=True)
    return token


def _stop_with_stdin(server: uvicorn.Server) -> None:
    """Stop when stdin closes: the parent is gone, however it went."""
    while sys.stdin.buffer.read(4096):
        continue
    server.should_exit = True

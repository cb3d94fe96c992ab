"""One running agent: claims cores, binds, starts the child, and serves until a signal, also in pull mode.

The agent also ends when its parent does. In pull mode, it fetches requests from a relay and has its own service on
loopback answer them. The agent dials out, so a device behind NAT needs no open port. The relay has checked the client's
token.
"""

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from profiling_agents import frames
from profiling_agents.execution.bench import WorkerSettings
from profiling_agents.execution.child import MODELS, Runner
from profiling_agents.frames import CHECKSUM_HEADER
from profiling_agents.lines import one_line_of
from profiling_agents.messages import MAX_TENSORS_MIB, MIB, AgentError, Answered, ErrorBody, Pulled, one_line
from profiling_agents.network.endpoint import Endpoint, address, bound, check_bind, is_loopback, new_token
from profiling_agents.network.guard import MAX_CONNECTIONS, GuardRules
from profiling_agents.network.server import http_server, private_folder, serve_with
from profiling_agents.sensing.machine import Claim, claim, pinned_frequency
from profiling_agents.serving.capabilities import ServerOptions, capabilities, described, sandbox_plan
from profiling_agents.serving.relay import PULL_S, REQUEST_HEADER, WAIT_HEADER, WORKING_HEADER, body_caps
from profiling_agents.serving.segments import model_files, serve_segments
from profiling_agents.serving.service import Agent, create_app
from profiling_agents.startup import READY

CONNECT_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
MAX_WORKING = 16


def _say(line: str) -> None:
    print(one_line_of(line), file=sys.stderr, flush=True)


def check_relay(url: str, network: Endpoint) -> None:
    """Refuse to send the token to a relay without TLS, unless it is on this machine or the user allows it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query:
        raise AgentError(f"--pull: got '{url}'; allowed: https://HOST:PORT, or http://127.0.0.1:PORT")
    if network.token is None:
        raise AgentError("--pull: the relay asks for a token; give the relay's with --token-file")
    if not is_loopback(network.host) or network.tls_cert is not None:
        raise AgentError("--pull: an agent that pulls listens to nobody; leave --host, --tls-cert and --tls-key out")
    if parts.scheme == "http" and not is_loopback(host) and not network.insecure_bind:
        raise AgentError(f"--pull {url}: not encrypted; use https, or --insecure-bind (see --help for what that means)")


class Puller:
    """Pulls one request after the other; each is answered in a separate task."""

    def __init__(self, url: str, token: str, ca_file: Path | None, own_url: str, own_token: str) -> None:
        """url, token: of the relay. own_url, own_token: of the agent's own service on loopback."""
        self._url = url.rstrip("/")
        try:
            trusted = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise AgentError(f"--ca-file '{ca_file}': cannot be used ({error})") from error
        timeout = httpx.Timeout(PULL_S + 10.0, connect=CONNECT_TIMEOUT_S)
        self._relay = httpx.AsyncClient(
            base_url=self._url, headers=_bearer(token), timeout=timeout, verify=trusted, trust_env=False
        )
        # No time-out: the service answers when the device is done, and a stream of results lasts until its last job.
        self._local = httpx.AsyncClient(
            base_url=own_url, headers=_bearer(own_token), timeout=None, verify=False, trust_env=False
        )
        self._working: dict[str, asyncio.Task[None]] = {}

    async def connect(self) -> None:
        """Pull once without waiting for a request: AgentError when the relay refuses this agent; retries while it is away."""
        await self._pull(wait_s=0)

    async def work(self) -> None:
        """Pull until stopped; AgentError when the relay refuses this agent."""
        try:
            while True:
                if len(self._working) >= MAX_WORKING:
                    await asyncio.wait(self._working.values(), return_when=asyncio.FIRST_COMPLETED)
                    continue
                await self._pull(wait_s=PULL_S)
        finally:
            for task in self._working.values():
                task.cancel()
            await self._relay.aclose()
            await self._local.aclose()

    async def _pull(self, wait_s: float) -> None:
        """One pull, repeated with growing pauses while the relay is away."""
        pause_s = FIRST_PAUSE_S
        while True:
            headers = {WAIT_HEADER: str(int(wait_s)), WORKING_HEADER: ",".join(self._working)}
            request = self._relay.build_request("GET", "/v1/pull", headers=headers)
            try:
                response = await self._relay.send(request, stream=True)
                if response.status_code == 200:
                    await self._accept(response)
                    return
                await response.aread()
            except httpx.TransportError as error:
                _say(f"relay {self._url}: {error or type(error).__name__}; trying again")
            else:
                if response.status_code == 204:
                    return
                if response.status_code < 500 and response.status_code != 429:
                    self._refused(response)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _accept(self, response: httpx.Response) -> None:
        """Read the header of a pulled request and leave the rest to a task."""
        chunks = response.aiter_bytes()
        try:
            header, start = await frames.first(chunks)
            pulled = Pulled.model_validate_json(header)
        except AgentError as error:
            raise httpx.ReadError("the relay sent no whole request") from error
        except ValidationError as error:
            raise httpx.ReadError(f"a request of the relay came garbled ({one_line(error)})") from error
        task = asyncio.create_task(self._answer(pulled, start, chunks, response))
        self._working[pulled.request] = task
        task.add_done_callback(lambda _: self._working.pop(pulled.request))

    async def _answer(
        self, pulled: Pulled, start: bytes, chunks: AsyncIterator[bytes], response: httpx.Response
    ) -> None:
        """Ask the own service and stream its answer to the relay. After a failure, the client asks again."""
        body = _joined(start, chunks) if pulled.method in ("POST", "PUT") else None
        headers = {"Lease": pulled.lease, CHECKSUM_HEADER: pulled.checksum}
        headers = {name: value for name, value in headers.items() if value}
        try:
            async with self._local.stream(pulled.method, pulled.path, content=body, headers=headers) as answer:
                await self._relay.post(
                    "/v1/answers",
                    content=_framed(answer),
                    headers={REQUEST_HEADER: pulled.request},
                    timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S, write=PULL_S),
                )
        except (httpx.TransportError, httpx.StreamError) as error:
            _say(f"relay {self._url}: {pulled.method} {pulled.path}: {error or type(error).__name__}")
        finally:
            await response.aclose()

    def _refused(self, response: httpx.Response) -> NoReturn:
        try:
            line = ErrorBody.model_validate_json(response.content).error
        except ValidationError:
            line = f"answered {response.status_code}; is it an AutoTailor relay?"
        raise AgentError(f"relay {self._url}: {line}")


async def _joined(start: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for chunk in chunks:
        yield chunk


async def _framed(answer: httpx.Response) -> AsyncIterator[bytes]:
    header = Answered(
        status=answer.status_code,
        content_type=answer.headers.get("content-type", ""),
        retry_after=answer.headers.get("retry-after", ""),
        checksum=answer.headers.get(CHECKSUM_HEADER, ""),
    )
    yield frames.pack(header.model_dump_json().encode())
    async for chunk in answer.aiter_raw():
        yield chunk


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def serve(options: ServerOptions) -> None:
    """Run until stopped; AgentError when it cannot start."""
    network = options.network
    check_bind(network)
    if options.segments and options.pull is not None:
        raise AgentError("--serve-segments: not with --pull, since a stream is one kept connection; give one of them")
    if options.allowed_peers and not options.segments:
        raise AgentError("--allow-peer: for --serve-segments alone, which is not given; give both")
    if options.pull is not None:
        check_relay(options.pull, network)
        # The relay is the only way in: nobody can reach the service itself without reading this process's memory.
        network = replace(network, port=0, token=os.urandom(32).hex())
    with private_folder() as folder, bound(network.host, network.port) as listener:
        claimed = claim(options.threads, options.cores)
        with pinned_frequency(claimed.cores, options.pin_mhz, options.cores_root):
            token = network.token or new_token(folder, "agent")
            settings = _worker(options, folder, claimed)
            if options.segments:
                asyncio.run(serve_segments(options, settings, folder, listener, token))
            else:
                asyncio.run(_serve(options, settings, folder, listener, claimed, token))


def _worker(options: ServerOptions, folder: Path, claimed: Claim) -> WorkerSettings:
    shared = {name: getattr(options, name) for name in WorkerSettings.model_fields if hasattr(options, name)}
    sandbox = sandbox_plan(options, folder / MODELS)
    own = {"cores": claimed.cores, "sandbox": sandbox, "max_payload_bytes": MAX_TENSORS_MIB * MIB}
    return WorkerSettings.model_validate(shared | own)


async def _serve(
    options: ServerOptions, settings: WorkerSettings, folder: Path, listener: socket.socket, claimed: Claim, token: str
) -> None:
    runner = Runner(settings, folder)
    try:
        runtime, sandbox = await runner.start()
        found = capabilities(options, claimed, runtime, described(options, sandbox))
        agent = Agent(found, runner, model_files(options, settings, folder), options.cores_root)
        rules = GuardRules(body_bytes=body_caps(options.max_model_mib))
        server = http_server(options.network, create_app(agent), token, rules)
        listener.listen(MAX_CONNECTIONS)
        url = address(options.network, listener)
        pulling = []
        if options.pull is not None:
            assert options.network.token is not None
            puller = Puller(options.pull, options.network.token, options.ca_file, url, token)
            await puller.connect()
            pulling.append(puller.work())
            url = options.pull
        await serve_with(server, [listener], options.network, f"{READY}{url}", agent.jobs.work(), *pulling)
    finally:
        await runner.close()

"""The device-side HTTP service: capabilities, lease, models, measure, run; all behind the guard."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from profiling_agents import frames
from profiling_agents.guard import Guard, refusal
from profiling_agents.leases import LeaseError, Leases
from profiling_agents.messages import (
    MIB,
    AgentError,
    Capabilities,
    ErrorBody,
    LeaseGranted,
    LeaseRequest,
    Measurement,
    MeasureRequest,
    Message,
    RunRequest,
    one_line,
)
from profiling_agents.runner import Runner
from profiling_agents.store import ModelFiles

LEASE_HEADER = "lease"
RUN_TYPE = "application/octet-stream"
STREAM_TYPE = "application/x-ndjson"


@dataclass(frozen=True)
class Agent:
    """State of the service. `bench` serialises the use of the child process."""

    capabilities: Capabilities
    runner: Runner
    models: ModelFiles
    leases: Leases = field(default_factory=Leases)
    bench: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def show(self, request: Request) -> Response:
        """GET capabilities."""
        return _json(self.capabilities)

    async def acquire(self, request: Request) -> Response:
        """POST lease: exclusive use, with an empty model store."""
        wish = LeaseRequest.model_validate_json(await request.body() or b"{}")
        lease = self.leases.acquire(wish.ttl_s)
        self.models.clear()
        return _json(LeaseGranted(lease=lease, expires_in_s=wish.ttl_s))

    async def renew(self, request: Request) -> Response:
        """PUT lease."""
        lease = request.headers.get(LEASE_HEADER, "")
        return _json(LeaseGranted(lease=lease, expires_in_s=self.leases.renew(lease)))

    async def release(self, request: Request) -> Response:
        """DELETE lease."""
        self.leases.release(request.headers.get(LEASE_HEADER, ""))
        self.models.clear()
        return Response(status_code=204)

    async def upload(self, request: Request) -> Response:
        """POST models: raw bytes, answered with their digest."""
        self._leased(request)
        return _json(await self.models.receive(request.stream()), 201)

    async def measure(self, request: Request) -> Response:
        """POST measure: a batch of jobs; one JSON line for each as it is done."""
        lease = self._leased(request)
        batch = MeasureRequest.model_validate_json(await request.body())
        missing = self.models.missing(tuple(digest for job in batch.jobs for digest in job.files))
        if missing:
            return _missing(missing)
        return StreamingResponse(self._measure(batch, lease), media_type=STREAM_TYPE)

    async def run(self, request: Request) -> Response:
        """POST run: a frame of job and inputs; answered with a frame of outputs."""
        self._leased(request)
        async with self.bench:
            max_bytes = self.capabilities.max_tensors_mib * MIB
            header, payload = frames.unpack(await request.body(), max_bytes)
            message = RunRequest.model_validate_json(header)
            missing = self.models.missing(message.job.files)
            if missing:
                return _missing(missing)
            result, outputs = await self.runner.run(message, bytes(payload))
        return Response(frames.pack(result.model_dump_json().encode(), outputs), media_type=RUN_TYPE)

    async def _measure(self, batch: MeasureRequest, lease: str) -> AsyncIterator[bytes]:
        async with self.bench:
            for job in batch.jobs:
                try:
                    self.leases.renew(lease)
                    result = await self.runner.measure(job, batch.settings)
                except (LeaseError, AgentError) as error:
                    result = Measurement.failed(job.key, str(error))
                yield result.model_dump_json().encode() + b"\n"

    def _leased(self, request: Request) -> str:
        """The caller's lease, renewed; LeaseError without one."""
        lease = request.headers.get(LEASE_HEADER, "")
        self.leases.renew(lease)
        return lease


def create_app(agent: Agent, *, token: str, hosts: frozenset[str], any_address: bool) -> Guard:
    """The ASGI application: the routes behind the guard, without generated documentation."""
    routes = [
        Route("/v1/capabilities", agent.show, methods=["GET"]),
        Route("/v1/lease", agent.acquire, methods=["POST"]),
        Route("/v1/lease", agent.renew, methods=["PUT"]),
        Route("/v1/lease", agent.release, methods=["DELETE"]),
        Route("/v1/models", agent.upload, methods=["POST"]),
        Route("/v1/measure", agent.measure, methods=["POST"]),
        Route("/v1/run", agent.run, methods=["POST"]),
    ]
    handlers = {
        HTTPException: lambda _, error: refusal(error.status_code, error.detail),
        ValidationError: lambda _, error: refusal(422, one_line(error)),
        LeaseError: lambda _, error: refusal(error.status, str(error)),
        AgentError: lambda _, error: refusal(400, str(error)),
        Exception: lambda _, error: refusal(500, f"the agent failed: {type(error).__name__}"),
    }
    body_bytes = {
        "/v1/models": agent.capabilities.max_model_mib * MIB,
        "/v1/run": agent.capabilities.max_tensors_mib * MIB + frames.MAX_HEADER_BYTES,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, token=token, hosts=hosts, any_address=any_address, body_bytes=body_bytes)


def _json(message: Message, status: int = 200) -> JSONResponse:
    return JSONResponse(message.model_dump(mode="json"), status)


def _missing(digests: tuple[str, ...]) -> JSONResponse:
    return _json(ErrorBody(error=f"{len(digests)} file(s) are not here; upload them first", missing=digests), 404)

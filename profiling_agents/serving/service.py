"""The device-side HTTP service: capabilities, lease, models, jobs and their results, run; all behind the guard."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from profiling_agents import frames, messages
from profiling_agents.execution.child import Runner
from profiling_agents.frames import CHECKSUM_HEADER, GarbledError, check, checksum
from profiling_agents.network.guard import RequestRefused, checked, refusal
from profiling_agents.sensing.machine import available_cores
from profiling_agents.sensing.sensors import SYSTEM, state
from profiling_agents.serving.job_queue import JobQueue, Leases
from profiling_agents.serving.store import ModelFiles

LEASE_HEADER = "lease"
RUN_TYPE = "application/octet-stream"
STREAM_TYPE = "application/x-ndjson"
MAX_DIGITS = 15


Handler = Callable[["Agent", Request], Awaitable[Response]]
Refuse = Callable[[Any, Any], Response | Awaitable[Response]]
"""Turns a request and an error into the answer."""


class Agent:
    """State of the service: one device, its lease, and the queued jobs of the lease's holder."""

    def __init__(
        self, capabilities: messages.Capabilities, runner: Runner, models: ModelFiles, cores_root: Path = SYSTEM
    ) -> None:
        """cores_root: folder of the /sys with the state of the cores."""
        self.capabilities = capabilities
        self._cores_root = cores_root
        self.jobs = JobQueue(runner, models)
        self._runner = runner
        self._models = models
        self._leases = Leases()
        self._expiry: asyncio.Task[None] | None = None

    async def show(self, request: Request) -> Response:
        """GET capabilities, with the current state."""
        return _json(self.capabilities.model_copy(update={"state": state(available_cores(), self._cores_root)}))

    async def acquire(self, request: Request) -> Response:
        """POST lease: exclusive use, with an empty queue and an empty model store."""
        wish = messages.LeaseRequest.model_validate_json(await _body(request))
        if self._leases.acquire(wish.lease, wish.ttl_s):
            self._clear()
            self._expiry = asyncio.create_task(self._expire())
        return _json(messages.LeaseGranted(lease=wish.lease, expires_in_s=wish.ttl_s))

    async def renew(self, request: Request) -> Response:
        """PUT lease."""
        return _json(messages.LeaseGranted(lease=lease_of(request), expires_in_s=self._leases.renew(lease_of(request))))

    async def release(self, request: Request) -> Response:
        """DELETE lease: waiting jobs are dropped, the running job is stopped."""
        self._leases.release(lease_of(request))
        self._clear()
        return checked(Response(status_code=204))

    async def upload(self, request: Request) -> Response:
        """POST models: raw bytes, answered with their digest."""
        self._leases.renew(lease_of(request))
        return _json(await self._models.receive(request.stream()), 201)

    async def submit(self, request: Request) -> Response:
        """POST jobs: a batch into the queue."""
        self._leases.renew(lease_of(request))
        batch = messages.JobsRequest.model_validate_json(await _body(request))
        missing = self._models.missing(digest for job in batch.jobs for digest in job.files)
        if missing:
            return _missing(missing)
        return _json(self.jobs.submit(batch), 202)

    async def drop(self, request: Request) -> Response:
        """DELETE jobs: forget all waiting jobs and all results."""
        self._leases.renew(lease_of(request))
        return _json(self.jobs.drop())

    async def progress(self, request: Request) -> Response:
        """GET jobs/N."""
        self._leases.renew(lease_of(request))
        return _json(self.jobs.progress(number_of(request)))

    async def cancel(self, request: Request) -> Response:
        """DELETE jobs/N: the job fails as cancelled, the others continue."""
        self._leases.renew(lease_of(request))
        self.jobs.cancel(number_of(request))
        return _json(self.jobs.progress(number_of(request)))

    async def results(self, request: Request) -> Response:
        """GET results/N: one JSON line for each job from N on, in order, as it is done; empty lines keep the stream alive."""
        self._leases.renew(lease_of(request))
        return StreamingResponse(self.jobs.results(number_of(request)), media_type=STREAM_TYPE)

    async def run(self, request: Request) -> Response:
        """POST run: a frame of job and inputs; answered with a frame of outputs."""
        self._leases.renew(lease_of(request))
        async with self.jobs.bench:
            max_bytes = self.capabilities.max_tensors_mib * messages.MIB
            header, payload = frames.unpack(await _body(request), max_bytes)
            message = messages.RunRequest.model_validate_json(header)
            missing = self._models.missing(message.job.files)
            if missing:
                return _missing(missing)
            result, outputs = await self._runner.run(message, bytes(payload))
        return checked(Response(frames.pack(result.model_dump_json().encode(), outputs), media_type=RUN_TYPE))

    def _clear(self) -> None:
        """End a lease: nothing of its holder stays."""
        if self._expiry is not None and self._expiry is not asyncio.current_task():
            self._expiry.cancel()
        self._expiry = None
        self.jobs.clear()
        self._models.clear()

    async def _expire(self) -> None:
        """Clear when the lease has expired; renewals before then prolong the wait."""
        while (remaining_s := self._leases.remaining_s) > 0:
            await asyncio.sleep(remaining_s)
        self._clear()


ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/capabilities": {"GET": Agent.show},
    "/v1/lease": {"POST": Agent.acquire, "PUT": Agent.renew, "DELETE": Agent.release},
    "/v1/models": {"POST": Agent.upload},
    "/v1/jobs": {"POST": Agent.submit, "DELETE": Agent.drop},
    "/v1/jobs/{number}": {"GET": Agent.progress, "DELETE": Agent.cancel},
    "/v1/results/{number}": {"GET": Agent.results},
    "/v1/run": {"POST": Agent.run},
}
"""All routes, by path and method."""


REFUSALS: dict[Any, Refuse] = {
    HTTPException: lambda _, error: refusal(error.status_code, error.detail),
    ValidationError: lambda _, error: refusal(422, messages.one_line(error)),
    RequestRefused: lambda _, error: refusal(error.status, str(error), retry_after_s=error.retry_after_s),
    GarbledError: lambda _, error: refusal(503, f"the request came garbled: {error}; send it again"),
    messages.AgentError: lambda _, error: refusal(400, str(error)),
    Exception: lambda _, error: refusal(500, f"the agent failed: {type(error).__name__}"),
}
"""The answer, in one line, to every error that a handler may raise."""


def create_app(agent: Agent) -> Starlette:
    """The ASGI application behind the guard, without generated documentation."""
    routes = [
        Route(path, partial(handler, agent), methods=[method])
        for path, handlers in ROUTES.items()
        for method, handler in handlers.items()
    ]
    app = Starlette(routes=routes, exception_handlers=REFUSALS)
    app.router.redirect_slashes = False
    return app


def lease_of(request: Request) -> str:
    return request.headers.get(LEASE_HEADER, "")


def number_of(request: Request) -> int:
    """The job number in the path."""
    text = request.path_params["number"]
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise RequestRefused("job number: not a whole number; allowed: those of this lease's jobs", 404)
    return int(text)


def _json(message: messages.Message, status: int = 200) -> JSONResponse:
    return checked(JSONResponse(message.model_dump(mode="json"), status))


async def _body(request: Request) -> bytes:
    """The body; GarbledError when it does not match the checksum that the client stated."""
    content = await request.body()
    check(content, request.headers.get(CHECKSUM_HEADER, checksum(content)))
    return content


def _missing(digests: tuple[str, ...]) -> JSONResponse:
    return _json(
        messages.ErrorBody(error=f"{len(digests)} file(s) are not here; upload them first", missing=digests), 404
    )

"""The routes of a service: the Open Inference Protocol v2, metrics, the state, and the live page."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adaptive_runtime.deployed import ModelState
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.service import page
from adaptive_runtime.service.inference import passed_ms, read, written
from adaptive_runtime.service.metrics import CONTENT_TYPE, ServiceMetrics
from adaptive_runtime.service.models import ServedModel
from adaptive_runtime.service.protocol import BINARY, LENGTH_HEADER
from adaptive_runtime.service.recent import RecentService
from adaptive_runtime.service.refusals import RequestRefused
from adaptive_runtime.service.tensors import PackedBody, shown
from adaptive_runtime.service.told import state_told
from adaptive_runtime.service.waiting import RequestQueue
from profiling_agents.network.guard import refusal

BODY_S = 10.0
"""A body that is not whole after so long is refused: it holds a place in the queue."""


class ModelService:
    """A model behind routes. name: by which clients ask for it. deadline_ms: of requests that name none."""

    def __init__(self, model: ServedModel, queue: RequestQueue, *, name: str, deadline_ms: float) -> None:
        self.model, self.queue = model, queue
        self.name, self.version, self._deadline_ms = name, model.version, deadline_ms
        self.recent = RecentService(model.state())
        self.metrics = ServiceMetrics(model, lambda: queue.depth)

    def observe(self) -> ModelState:
        """Tell what has changed since the last call. What serves now."""
        state = self.model.state()
        self.recent.observe(state)
        if self.model.devices is not None:
            self.recent.decisions.extend(self.model.devices.news())
        return state

    async def server(self, request: Request) -> Response:
        """GET v2: what this server is."""
        return JSONResponse({"name": "autotailor", "version": package_version(), "extensions": [BINARY]})

    async def live(self, request: Request) -> Response:
        """GET v2/health/live."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """GET v2/health/ready: 503 once no SubNet is left that works."""
        return self._readiness({})

    async def model_ready(self, request: Request) -> Response:
        """GET …/ready of the model."""
        self._known(request)
        return self._readiness({"name": self.name})

    async def metadata(self, request: Request) -> Response:
        """GET the model's metadata."""
        self._known(request)
        return JSONResponse(self.model.format.metadata(self.name, self.version))

    async def infer(self, request: Request) -> Response:
        """POST …/infer."""
        start_s = time.monotonic()
        try:
            return await self._infer(request, start_s)
        except RequestRefused as refused:
            self._count(refused.outcome)
            raise
        except (HTTPException, ClientDisconnect):
            self._count("refused")
            raise
        except Exception:
            self._count("failed")
            raise

    async def scrape(self, request: Request) -> Response:
        """GET metrics."""
        return Response(self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def state(self, request: Request) -> Response:
        """GET state."""
        state = self.observe()
        queue = {"depth": self.queue.depth, "places": self.queue.places, "workers": self.queue.workers}
        told = state_told(state, self.recent, self.model.load.now, queue)
        if self.model.devices is not None:
            told["split"] = self.model.devices.now.model_dump()
        return JSONResponse({"name": self.name, "version": self.version, **told})

    async def _infer(self, request: Request, start_s: float) -> Response:
        self._known(request)
        with self.queue.place():
            read_request = read(await _body(request), request.headers.get(LENGTH_HEADER), self.model.format)
            message = read_request.message
            until_s = start_s + (message.parameters.deadline_ms or self._deadline_ms) / 1e3
            try:
                answer = await self.queue.answer(read_request.images_NCHW, until_s)
            except AdaptiveError as error:
                raise RequestRefused(503, str(error), outcome="failed") from error
        late_ms = max(0.0, passed_ms(until_s))
        waited_ms = max(0.0, passed_ms(start_s) - answer.latency_ms)
        response = _response(written(message, answer, (self.name, self.version), waited_ms, late_ms))
        self._count("late" if late_ms else "answered")
        self.metrics.observe(answer, waited_ms)
        self.recent.answered(answer, waited_ms, late_ms)
        self.observe()
        return response

    def _count(self, outcome: str) -> None:
        self.metrics.count(outcome)
        self.recent.outcomes[outcome] += 1

    def _known(self, request: Request) -> None:
        name, given = request.path_params["name"], request.path_params.get("version", self.version)
        if name != self.name:
            raise RequestRefused(404, f"model '{shown(name)}'; allowed: {self.name}")
        if given != self.version:
            raise RequestRefused(404, f"version '{shown(given)}' of model '{name}'; allowed: {self.version}")

    def _readiness(self, head: dict[str, str]) -> Response:
        ready = self.model.works()
        return JSONResponse({**head, "ready": ready}, 200 if ready else 503)


def create_app(service: ModelService) -> Starlette:
    """The ASGI application that goes behind the guard, without generated documentation."""
    model = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    routes = [
        Route("/v2", service.server),
        Route("/v2/health/live", service.live),
        Route("/v2/health/ready", service.ready),
        *(Route(path, service.metadata) for path in model),
        *(Route(f"{path}/ready", service.model_ready) for path in model),
        *(Route(f"{path}/infer", service.infer, methods=["POST"]) for path in model),
        Route("/metrics", service.scrape),
        Route("/state", service.state),
        *(Route(path, page.file) for path in page.FILES),
        Route(page.PLOTLY, page.plotly),
    ]
    app = Starlette(routes=routes, exception_handlers=REFUSALS)
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: RequestRefused) -> Response:
    return refusal(error.status, str(error), retry_after_s=error.retry_after_s)


async def _http(request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, error.detail)


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return refusal(400, "the body broke off")


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, f"the service failed: {type(error).__name__}")


REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    RequestRefused: _refused,
    HTTPException: _http,
    ClientDisconnect: _gone,
    Exception: _failed,
}
"""Every error that a route may raise, as one line."""


def package_version() -> str:
    """The version of the installed package; 'unknown': it runs from its sources."""
    for name in ("autotailor-runtime", "autotailor"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


async def _body(request: Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body()
    except TimeoutError as error:
        raise HTTPException(408, f"the body was not there after {BODY_S:g} s") from error


def _response(body: PackedBody) -> Response:
    if body.json_bytes is None:
        return Response(body.content, media_type="application/json")
    headers = {LENGTH_HEADER: str(body.json_bytes)}
    return Response(body.content, media_type="application/octet-stream", headers=headers)

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

from adaptive_runtime.server import pages
from adaptive_runtime.server.answering import BODY_S, AskedAnswer, ModelService
from adaptive_runtime.server.inference import read, written
from adaptive_runtime.server.metrics import CONTENT_TYPE
from adaptive_runtime.server.protocol import BINARY, LENGTH_HEADER
from adaptive_runtime.server.refusals import RequestRefused
from adaptive_runtime.server.tensors import PackedBody, shown
from adaptive_runtime.server.told import state_told
from profiling_agents.network.guard import refusal


class ServiceRoutes:
    """The routes of a model that answers."""

    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._model, self._name, self._version = service.model, service.name, service.version

    async def server(self, request: Request) -> Response:
        """GET v2: name, version and extensions of this server."""
        return JSONResponse({"name": "autotailor", "version": package_version(), "extensions": [BINARY]})

    async def live(self, request: Request) -> Response:
        """GET v2/health/live."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """GET v2/health/ready: 503 if no working SubNet is left."""
        return self._readiness({})

    async def model_ready(self, request: Request) -> Response:
        """GET …/ready of the model."""
        self._known(request)
        return self._readiness({"name": self._name})

    async def metadata(self, request: Request) -> Response:
        """GET the model's metadata."""
        self._known(request)
        return JSONResponse(self._model.format.metadata(self._name, self._version))

    async def infer(self, request: Request) -> Response:
        """POST …/infer."""
        arrived_s = time.monotonic()
        service = self._service
        with service.counted():
            self._known(request)
            with service.place():
                read_request = read(await _body(request), request.headers.get(LENGTH_HEADER), self._model.format)
                message = read_request.message
                of_all = message.parameters
                asked = AskedAnswer(read_request.images_NCHW, arrived_s, of_all.deadline_ms, of_all.subnet)
                given = await service.answer(asked)
            response = _response(written(message, *given, model=(self._name, self._version)))
            service.answered(given)
            return response

    async def scrape(self, request: Request) -> Response:
        """GET metrics."""
        return Response(self._service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def state(self, request: Request) -> Response:
        """GET state."""
        service, model = self._service, self._model
        state, waiting = service.observe(), service.queue
        queue = {"depth": waiting.depth, "places": waiting.places, "workers": waiting.workers}
        told = state_told(state, service.recent, model.load.now, queue)
        if model.devices is not None:
            told["split"] = model.devices.now.model_dump()
        return JSONResponse({"name": self._name, "version": self._version, **told})

    def _known(self, request: Request) -> None:
        name, given = request.path_params["name"], request.path_params.get("version", self._version)
        if name != self._name:
            raise RequestRefused(404, f"model '{shown(name)}'; allowed: {self._name}")
        if given != self._version:
            raise RequestRefused(404, f"version '{shown(given)}' of model '{name}'; allowed: {self._version}")

    def _readiness(self, head: dict[str, str]) -> Response:
        ready = self._model.works()
        return JSONResponse({**head, "ready": ready}, 200 if ready else 503)


def create_app(service: ModelService) -> Starlette:
    """The ASGI application behind the guard, without generated documentation."""
    own = ServiceRoutes(service)
    model = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    routes = [
        Route("/v2", own.server),
        Route("/v2/health/live", own.live),
        Route("/v2/health/ready", own.ready),
        *(Route(path, own.metadata) for path in model),
        *(Route(f"{path}/ready", own.model_ready) for path in model),
        *(Route(f"{path}/infer", own.infer, methods=["POST"]) for path in model),
        Route("/metrics", own.scrape),
        Route("/state", own.state),
        *(Route(path, pages.file) for path in pages.FILES),
        Route(pages.PLOTLY, pages.plotly),
    ]
    app = Starlette(routes=routes, exception_handlers=REFUSALS)
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: RequestRefused) -> Response:
    return refusal(error.status, str(error), retry_after_s=error.retry_after_s)


async def _http(request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, error.detail)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, f"the service failed: {type(error).__name__}")


REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    RequestRefused: _refused,
    HTTPException: _http,
    Exception: _failed,
}
"""Handlers that turn every error of a route into one line."""


def package_version() -> str:
    """The version of the installed package; 'unknown' if it runs from its sources."""
    for name in ("autotailor-runtime", "autotailor"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


async def _body(request: Request) -> bytes:
    """The body of a request. RequestRefused: it is late, broken off or too large."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.body()
    except TimeoutError as error:
        raise RequestRefused(408, f"the body was not there after {BODY_S:g} s") from error
    except ClientDisconnect as error:
        raise RequestRefused(400, "the body broke off") from error
    except HTTPException as error:  # raised by the gate in front of the routes
        raise RequestRefused(error.status_code, error.detail) from error


def _response(body: PackedBody) -> Response:
    if body.json_bytes is None:
        return Response(body.content, media_type="application/json")
    headers = {LENGTH_HEADER: str(body.json_bytes)}
    return Response(body.content, media_type="application/octet-stream", headers=headers)

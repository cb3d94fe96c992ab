"""One running service: binds, opens the model, serves its routes until a signal, answers accepted requests, ends.

Routes are the Open Inference Protocol v2, metrics, the state, and the live page.
"""

import asyncio
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import run_at
from adaptive_runtime.base.telemetry import metrics_export
from adaptive_runtime.server import pages
from adaptive_runtime.server.answering import BODY_S, AskedAnswer, ModelService, RequestQueue
from adaptive_runtime.server.metrics import CONTENT_TYPE, state_report
from adaptive_runtime.server.options import ServiceOptions
from adaptive_runtime.server.pages import PATHS
from adaptive_runtime.server.protocol import BINARY, LENGTH_HEADER, PackedBody, RequestRefused, read, shown, written
from adaptive_runtime.server.recent import ChoiceMemory
from adaptive_runtime.server.served import ServedModel
from adaptive_runtime.server.unix_socket import listening
from adaptive_runtime.state.traces import LoadRecorder
from profiling_agents.messages import MIB
from profiling_agents.network.endpoint import address, bound, check_bind, new_token
from profiling_agents.network.guard import GuardRules, refusal
from profiling_agents.network.server import ended_by_signal, http_server, private_folder, serve_with


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
            body = written(
                message,
                given.answer,
                waited_ms=given.waited_ms,
                late_ms=given.late_ms,
                model=(self._name, self._version),
            )
            return _response(body, BackgroundTask(service.answered, given))

    async def scrape(self, request: Request) -> Response:
        """GET metrics."""
        return Response(self._service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def state(self, request: Request) -> Response:
        """GET state."""
        service, model = self._service, self._model
        state, waiting = service.observe(), service.queue
        queue = {"depth": waiting.depth, "places": waiting.places, "workers": waiting.workers}
        described = state_report(state, service.recent, model.load.now, queue)
        if model.devices is not None:
            described["split"] = model.devices.now.model_dump()
        return JSONResponse({"name": self._name, "version": self._version, **described})

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


def _response(body: PackedBody, afterwards: BackgroundTask) -> Response:
    """The response with a body, and work that follows when it has been sent."""
    kind = "json" if body.json_bytes is None else "octet-stream"
    headers = {} if body.json_bytes is None else {LENGTH_HEADER: str(body.json_bytes)}
    return Response(body.content, media_type=f"application/{kind}", headers=headers, background=afterwards)


LOG = logging.getLogger("adaptive_runtime")
READY = "service ready: "
"""The words before the address in the line that the service prints when it is ready."""
SHUTDOWN_S = 30
OBSERVE_S = 0.2
RECORD_S = 60.0
MOST_CONNECTIONS = 16_384
OWN_FILES = 128
"""Files that the service opens besides connections."""
SWITCH_S = 5e-4
"""Interval after which a waiting thread requests the interpreter: Python's 5 ms are a large part of a request's time."""


def serve(options: ServiceOptions, opening: AbstractContextManager[ServedModel]) -> None:
    """Run until stopped. opening: opens the model, once the sockets are bound. AdaptiveError, AgentError: it cannot start."""
    network = options.network
    check_bind(network)
    _check_room(options.load_trace)
    if options.niceness is not None:
        run_at(options.niceness)
    sys.setswitchinterval(SWITCH_S)
    with ended_by_signal(), _token(options) as token, _listeners(options) as listeners, opening as model:
        asyncio.run(_serve(options, listeners, model, token))


@contextmanager
def _listeners(options: ServiceOptions) -> Iterator[list[socket.socket]]:
    """The sockets by which the service answers: TCP first. AdaptiveError, AgentError: one cannot be bound."""
    network = options.network
    with ExitStack() as stack:
        found = [stack.enter_context(bound(network.host, network.port))] if options.tcp else []
        if options.socket is not None:
            found.append(stack.enter_context(listening(options.socket)))
        yield found


@contextmanager
def _token(options: ServiceOptions) -> Iterator[str]:
    """The user's token, else a new one: in a private folder on disk, unless no client needs it."""
    if options.network.token is not None or not options.tcp:
        yield options.network.token or token_urlsafe()
        return
    with ExitStack() as stack:
        try:
            token = new_token(stack.enter_context(private_folder()), "service")
        except OSError as error:
            raise AdaptiveError(
                "token", f"cannot be written ({error.strerror})", next_step="give --token-file"
            ) from error
        yield token


async def _serve(options: ServiceOptions, listeners: Sequence[socket.socket], model: ServedModel, token: str) -> None:
    queue = RequestQueue(model.infer, options.queue, options.workers)
    name, version = options.model_name, model.version
    recorder = None if options.load_trace is None else LoadRecorder(f"model '{name}', as it was served")
    service = ModelService(model, queue, name=name, deadline_ms=options.deadline_ms, recorder=recorder)
    connections = _connections()
    path = f"/v2/models/{name}"
    paths = (f"{path}/infer", f"{path}/versions/{version}/infer")
    rules = GuardRules(
        connections=connections,
        requests=connections,
        body_bytes=dict.fromkeys(paths, options.max_body_mib * MIB),
        open_paths=PATHS,
        shutdown_s=SHUTDOWN_S,
    )
    server = http_server(options.network, create_app(service), token, rules)
    ready = f"{READY}{address(options.network, listeners[0]) if options.tcp else f'unix:{options.socket}'}"
    works = [*(queue.work() for _ in range(options.workers)), _observe(service, model.memory)]
    works += metrics_export("autotailor-service", service.metrics.families)
    if recorder is not None and options.load_trace is not None:
        works.append(_record(recorder, options.load_trace))
    try:
        await serve_with(server, listeners, options.network, ready, *works)
    finally:
        queue.close()
        if recorder is not None and options.load_trace is not None:
            _write(recorder, options.load_trace)
        if model.memory is not None:
            model.memory.write(model.state().serving)


async def _observe(service: ModelService, memory: ChoiceMemory | None) -> None:
    """Report and remember the serving variant."""
    while True:
        state = service.observe()
        if memory is not None and memory.written != state.serving:
            await asyncio.to_thread(memory.write, state.serving)
        await asyncio.sleep(OBSERVE_S)


def _check_room(file: Path | None) -> None:
    """AdaptiveError: the file could not be written."""
    if file is not None and (file.is_dir() or not os.access(file.parent, os.W_OK)):
        raise AdaptiveError(str(file), "cannot be written", next_step="give a file in a folder that is there")


async def _record(recorder: LoadRecorder, file: Path) -> None:
    """Write the trace periodically, so that little is lost if the process is killed."""
    while True:
        await asyncio.sleep(RECORD_S)
        _write(recorder, file)


def _write(recorder: LoadRecorder, file: Path) -> None:
    """Write the trace so far. A failure or an empty trace is logged in one line."""
    try:
        recorder.trace.write(file)
    except AdaptiveError as error:
        LOG.warning("%s; %s is not written", error, file)
    except OSError as error:
        LOG.warning("%s cannot be written (%s)", file, error.strerror)


def _connections() -> int:
    """The number of connections that may be open at once, from the system's limit for this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS + OWN_FILES
    files = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, 4 * (files - OWN_FILES) // 5)  # a fourth as many have not shown a token yet (`network.places`)

"""The routes of a registry. Everything else is done on its own machine, by `autotailor fleet`."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from adaptive_runtime.fleet import AssignedBundle, EnrolAsked, Telemetry
from profiling_agents.messages import Message, one_line
from profiling_agents.network.guard import checked, refusal
from tasks.operations.fleet.registry import BundleStore, Registry
from tasks.operations.fleet.registry.bundles import signature_of
from tasks.operations.fleet.registry.devices import EnrolmentRefused, assigned_to, can_enrol, enrol, find_device
from tasks.operations.fleet.registry.telemetry import record
from tasks.operations.fleet.service.callers import CALLER_REFUSALS, UnknownTokenError, token_of, unchecked
from tasks.operations.fleet.service.threads import RegistryThreads


class RegistryRoutes:
    """The requests that devices may make."""

    def __init__(self, registry: Registry, store: BundleStore) -> None:
        self._registry, self._store = registry, store
        self._threads = RegistryThreads(registry)

    async def admits(self, token: str) -> bool:
        """Whether it is the token of a device, or one to enrol with: all other callers are rejected. UncheckedTokenError."""
        try:
            return await self._threads.read(self._admits, token)
        except SQLAlchemyError as error:
            raise unchecked(error) from error

    async def enrol(self, request: Request) -> Response:
        """POST v1/enrolments, with a token that can be used once: the device's number and its own token."""
        asked = EnrolAsked.model_validate_json(await request.body())
        return await self._threads.write(self._enrol, token_of(request), asked)

    async def telemetry(self, request: Request) -> Response:
        """POST v1/telemetry, with a device's token: takes sums; answers with the bundle that the device should run."""
        told = Telemetry.model_validate_json(await request.body())
        return await self._threads.write(self._record, token_of(request), told)

    async def file(self, request: Request) -> Response:
        """GET v1/files/DIGEST, with a device's token: a file of a bundle."""
        await self._threads.read(self._known, token_of(request))
        path = self._store.path(request.path_params["digest"])
        if path is None:
            return refusal(404, "there is no such file")
        return FileResponse(path, media_type="application/octet-stream")

    def _admits(self, token: str) -> bool:
        with self._registry.reading() as connection:
            return find_device(connection, token) is not None or can_enrol(connection, token)

    def _enrol(self, token: str, asked: EnrolAsked) -> Response:
        with self._registry.writing() as connection:
            return _answer(enrol(connection, token, asked))

    def _record(self, token: str, told: Telemetry) -> Response:
        with self._registry.writing() as connection:
            device = find_device(connection, token)
            if device is None:
                raise UnknownTokenError
            ahead = record(connection, device, told, time.time(), self._registry.window_s)
            bundle = assigned_to(connection, device)
            signature = None if bundle is None else signature_of(connection, bundle)
        every_s = self._registry.window_s
        assigned = AssignedBundle(bundle=bundle, signature=signature, tell_every_s=every_s)
        return _answer(assigned if ahead is None else assigned.model_copy(update={"ahead": ahead}))

    def _known(self, token: str) -> None:
        with self._registry.reading() as connection:
            if find_device(connection, token) is None:
                raise UnknownTokenError


def create_app(routes: RegistryRoutes) -> Starlette:
    """The ASGI application that goes behind the guard, without generated documentation."""
    found = [
        Route("/v1/enrolments", routes.enrol, methods=["POST"]),
        Route("/v1/telemetry", routes.telemetry, methods=["POST"]),
        Route("/v1/files/{digest}", routes.file, methods=["GET"]),
    ]
    app = Starlette(routes=found, exception_handlers=REFUSALS)
    app.router.redirect_slashes = False
    return app


def _answer(message: Message) -> Response:
    """The message without unset fields: devices of earlier versions do not know `ahead`."""
    return checked(JSONResponse(message.model_dump(mode="json", exclude_unset=True)))


async def _invalid(request: Request, error: ValidationError) -> Response:
    return refusal(422, one_line(error))


async def _http(request: Request, error: HTTPException) -> Response:
    return refusal(error.status_code, error.detail)


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(500, f"the service failed: {type(error).__name__}")


REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    **CALLER_REFUSALS,
    EnrolmentRefused: CALLER_REFUSALS[UnknownTokenError],
    ValidationError: _invalid,
    HTTPException: _http,
    Exception: _failed,
}
"""Every error that a route may raise, as one line; no line contains a token, or a statement of the database."""

"""The caller of a fleet's service: the token of a request, and the refusals if the registry cannot admit it."""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response

from profiling_agents.network.guard import UncheckedTokenError, bearer, refusal

AWAY_RETRY_S = 5.0
"""When to ask again if the database is away."""


class UnknownTokenError(Exception):
    """The token is not valid for this route."""


def token_of(request: Request) -> str:
    """The token that the request shows; empty: none."""
    return bearer(request.headers.get("authorization", "")) or ""


def unchecked(error: SQLAlchemyError) -> UncheckedTokenError:
    """The error for a registry whose database is away, without the database's text, which may contain a statement."""
    line = f"the registry's database is away ({type(error).__name__}); try again in {AWAY_RETRY_S:g} s"
    return UncheckedTokenError(line, AWAY_RETRY_S)


async def _unknown(request: Request, error: Exception) -> Response:
    return refusal(401, "missing or wrong token; send 'Authorization: Bearer TOKEN'")


async def _unchecked(request: Request, error: UncheckedTokenError) -> Response:
    return refusal(503, str(error), retry_after_s=error.retry_after_s)


async def _database(request: Request, error: SQLAlchemyError) -> Response:
    return await _unchecked(request, unchecked(error))


CALLER_REFUSALS: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    UnknownTokenError: _unknown,
    UncheckedTokenError: _unchecked,
    SQLAlchemyError: _database,
}

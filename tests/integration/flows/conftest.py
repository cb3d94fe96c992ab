"""Fixtures of this room, for the tests of this tier."""

from tests.support.flows.fixtures import (
    adapted,
    adapted_night,
    adapting,
    command,
    finished,
    leveled,
    own_cache,
    postgres,
    server,
    text_run,
    trained_stages,
)

__all__ = [
    "adapted",
    "adapted_night",
    "adapting",
    "command",
    "finished",
    "leveled",
    "own_cache",
    "postgres",
    "server",
    "text_run",
    "trained_stages",
]

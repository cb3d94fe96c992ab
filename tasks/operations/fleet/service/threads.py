"""Threads that query a registry's database, so that the event loop that serves devices never waits for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from tasks.operations.fleet.registry import Registry

READERS = 4

P = ParamSpec("P")
T = TypeVar("T")


class RegistryThreads:
    """Threads of one service: some that read, and as many writers as the database takes at once."""

    def __init__(self, registry: Registry) -> None:
        self._readers = ThreadPoolExecutor(READERS, "registry-reader")
        self._writers = ThreadPoolExecutor(registry.writers, "registry-writer")

    async def read(self, asked: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that reads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(asked, *args, **kwargs))

    async def write(self, asked: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a function that writes."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, partial(asked, *args, **kwargs))

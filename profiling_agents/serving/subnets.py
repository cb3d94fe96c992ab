"""The SubNets whose segments a device serves: each in its own child process; only one computes at a time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from profiling_agents import messages
from profiling_agents.execution.child import Child, ChildDiedError, memory_reason
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.serving.store import ModelFiles


class SegmentsFailedError(messages.AgentError):
    """A SubNet cannot be loaded now, or its process has ended; another attempt may succeed. One line."""


class SegmentsRun(NamedTuple):
    """Coded outputs of segments, and the times waiting for the processor and computing [ms]."""

    activations: tuple[messages.SentActivation, ...]
    content: bytes
    waited_ms: float
    computed_ms: float


@dataclass(slots=True)
class _Served:
    subnet: messages.ServedSubNet
    child: Child
    coordinators: int = 0


class ServedSubNets:
    """At most `most` SubNets. A SubNet without a coordinator stays until another one needs its place."""

    def __init__(self, settings: WorkerSettings, folder: Path, models: ModelFiles, most: int) -> None:
        self._settings, self._folder, self.models, self._most = settings, folder, models, most
        self._served: dict[str, _Served] = {}
        self._spare: Child | None = None
        self._loading, self._computing = asyncio.Lock(), asyncio.Lock()

    async def start(self) -> tuple[messages.RuntimeInfo, messages.Sandbox]:
        """Start the child of the first SubNet; AgentError when there is no runtime."""
        self._spare = Child(self._settings, self._folder)
        return await self._spare.start()

    async def close(self) -> None:
        """End all children."""
        children = [one.child for one in self._served.values()]
        for child in (*children, *filter(None, [self._spare])):
            await child.close()

    async def enter(self, subnet: messages.ServedSubNet) -> tuple[str, ...]:
        """Load a SubNet for a coordinator: returns nothing once it is loaded, else the missing files. SegmentsFailedError."""
        async with self._loading:
            digest = subnet.digest
            found = self._served.get(digest)
            if found is not None and not found.child.alive:
                await self._drop(digest)
                found = None
            if found is None:
                if missing := self.models.missing(subnet.file_bytes):
                    return missing
                await self._make_room()
                found = self._served[digest] = await self._loaded(subnet)
            found.coordinators += 1
            return ()

    def leave(self, digest: str) -> None:
        """Record that a coordinator has gone."""
        if digest in self._served:
            self._served[digest].coordinators -= 1

    async def run(
        self, digest: str, request: messages.RunSegments, content: bytearray, wanted: Callable[[], bool]
    ) -> SegmentsRun:
        """Run segments when the processor is free, if the coordinator still wants it. SegmentsFailedError."""
        asked_s = time.perf_counter()
        async with self._computing:
            served = self._served.get(digest)
            if served is None or not served.child.alive or not wanted():
                raise SegmentsFailedError("the SubNet is loaded no more; load it again")
            waited_ms = (time.perf_counter() - asked_s) * 1e3
            message = messages.ChildSegments(
                first=request.first, last=request.last, tensors=request.tensors, coding=request.coding
            )
            reply, answer = await self._ask(served.child, message, bytes(content))
            return SegmentsRun(reply.activations, answer, waited_ms, reply.computed_ms)

    async def _loaded(self, subnet: messages.ServedSubNet) -> _Served:
        child = self._spare if self._spare is not None and self._spare.alive else None
        self._spare = None
        if child is None:
            child = Child(self._settings, self._folder)
            await child.start()
        self.models.hold(subnet.file_bytes)
        try:
            await self._ask(child, messages.ChildSegments(load=subnet))
        except BaseException:
            self.models.release(subnet.file_bytes)
            await child.close()
            raise
        return _Served(subnet, child)

    async def _ask(
        self, child: Child, message: messages.ChildSegments, payload: bytes = b""
    ) -> tuple[messages.ChildReply, bytes]:
        try:
            reply, answer = await child.ask(message, payload)
        except ChildDiedError as error:
            raise SegmentsFailedError(str(error)) from error
        if reply.reason is not None:
            memory_mib = self._settings.limits.memory_mib
            reason = memory_reason(memory_mib, reply.reason) if reply.out_of_memory else reply.reason
            raise SegmentsFailedError(reason)
        return reply, answer

    async def _make_room(self) -> None:
        free = [digest for digest, one in self._served.items() if one.coordinators <= 0]
        while len(self._served) >= self._most:
            if not free:
                line = f"this device serves {self._most} SubNets already, which is all it may (--max-subnets)"
                raise SegmentsFailedError(line)
            await self._drop(free.pop(0))

    async def _drop(self, digest: str) -> None:
        old = self._served.pop(digest)
        self.models.release(old.subnet.file_bytes)
        await old.child.close()

"""A device that greets and computes as it should, but for one thing that a test makes it do."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import SplitSubNet
from adaptive_runtime.offload.split.segments import CoordinatorSegments
from profiling_agents.messages import (
    COORDINATOR_MESSAGES,
    STREAM_PROTOCOL,
    Hello,
    LoadedSubNet,
    LoadSubNet,
    RanSegments,
    ReturnedProbe,
    RunSegments,
    SentActivation,
    SentProbe,
    Welcome,
    coded_bytes,
)
from profiling_agents.serving.giving import GivingValues
from profiling_agents.streams import FrameReader, FrameWriter, StreamEndError, StreamError, decoded_all, encoded

Arrays = list[np.ndarray]
Answer = Callable[["HostileDevice", RanSegments, bytes], Any]


@dataclass
class HostileDevice:
    """values: what it does to its tensors. answer: sends an answer's frame. digest: of the SubNet that it claims to have.

    giving: it says that it gives values to other devices, and does so to those that this allows.
    """

    split: SplitSubNet
    values: Callable[[Arrays], Arrays] = lambda arrays: arrays
    answer: Answer | None = None
    digest: str | None = None
    giving: GivingValues | None = None
    runs: int = 0
    writer: asyncio.StreamWriter | None = None
    frames: FrameWriter | None = None
    coordinator: CoordinatorSegments = field(init=False)

    def __post_init__(self) -> None:
        self.coordinator = CoordinatorSegments(self.split)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one coordinator."""
        self.writer, self.frames = writer, FrameWriter(writer)
        requests = FrameReader(reader, COORDINATOR_MESSAGES)
        with suppress(StreamEndError, StreamError, OSError):
            while True:
                head = await requests.head()
                match head.message:
                    case Hello():
                        await self.frames.send(
                            Welcome(
                                protocol=STREAM_PROTOCOL,
                                backend="none",
                                precision="fp32",
                                threads=1,
                                fingerprint="none",
                                formats=("onnx",),
                                hands=self.giving is not None,
                            )
                        )
                    case LoadSubNet(subnet=subnet):
                        await self.frames.send(LoadedSubNet(digest=self.digest or subnet.digest))
                    case SentProbe() as probe:
                        await requests.payload(head, probe.bytes)
                        answer = ReturnedProbe(request=probe.request, bytes=probe.back, received_ms=0.1)
                        await self.frames.send(answer, [bytes(probe.back)])
                    case RunSegments() as request:
                        shapes = self.split.subnet.shapes
                        names = self.split.subnet.entering(request.first, request.last)
                        entering = [shapes[name] for name in names]
                        content = await requests.payload(head, coded_bytes(entering, request.tensors))
                        values = dict(zip(names, decoded_all(request.tensors, entering, content), strict=True))
                        await self._run(request, values)

    async def _run(self, request: RunSegments, values: dict[str, np.ndarray]) -> None:
        assert self.frames is not None
        self.runs += 1
        given = self.coordinator.run(values, request.first, request.last).values
        left = self.values([given[name] for name in self.split.subnet.leaving(request.first, request.last)])
        sent = [encoded(one, request.coding) for one in left]
        message = RanSegments(
            request=request.request,
            tensors=tuple(one for one, _ in sent),
            received_ms=0.1,
            waited_ms=0.0,
            computed_ms=0.1,
        )
        content = b"".join(part for _, part in sent)
        if self.giving is not None and request.receiver is not None:
            times = await self.giving.give(request.receiver, message.tensors, content, request.within_ms * 1e-3)
            await self.frames.send(message.model_copy(update={"given": times, "tensors": ()}))
        elif self.answer is None:
            await self.frames.send(message, [content])
        else:
            await self.answer(self, message, content)


@contextmanager
def hostile(device: HostileDevice) -> Iterator[DeviceAddress]:
    """The device in a thread of its own."""
    ready, ports = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(device.connected, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        server.close()
        if device.giving is not None:
            device.giving.close()
        if device.writer is not None:
            device.writer.transport.abort()
            await asyncio.sleep(0.01)

    task = loop.create_task(serve())
    thread = threading.Thread(target=loop.run_until_complete, args=(task,), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield DeviceAddress(url=f"tcp://127.0.0.1:{ports[0]}", token="t" * 16)
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        loop.close()


def fp32(count: int) -> tuple[SentActivation, ...]:
    """How so many tensors cross in fp32."""
    return (SentActivation(coding="fp32"),) * count

"""A SubNet over several devices for a program on the coordinator: requests in, answers out, from any thread."""

import asyncio
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.closing import Closing
from adaptive_runtime.base.devices import COORDINATOR, EARLIER_COORDINATOR
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import DeviceAddress, MeasuredLink, SharedLink
from adaptive_runtime.offload.split.plans import PlacedSegments, PlacementChoice, PreferredPlacements
from adaptive_runtime.offload.split.requests import Flight, SplitAnswer, SplitCounts, SplitEvent, SplitOptions
from adaptive_runtime.offload.split.runner import SplitRunner
from adaptive_runtime.offload.split.segments import CoordinatorSegments, SplitSubNet

CLOSE_LIMIT_S = 10.0


class SplitNetwork(Closing):
    """An open SubNet. devices: by the names in the plans. plans: a fixed preference, or an object that chooses the plan.

    coordinator: runs segments in this process; None: the runtime of the SubNet's files. links: shared with other SubNets
    over the same devices; None: no other SubNets exist. Every request is answered once: by its plan, or by the coordinator.
    Close it, or use it as a context.
    """

    def __init__(
        self,
        split: SplitSubNet,
        devices: Mapping[str, DeviceAddress],
        plans: Sequence[PlacedSegments] | PlacementChoice,
        options: SplitOptions | None = None,
        coordinator: CoordinatorSegments | None = None,
        links: Mapping[str, SharedLink] | None = None,
    ) -> None:
        for name in (COORDINATOR, EARLIER_COORDINATOR):
            if name in devices:
                raise AdaptiveError("devices", f"one is called '{name}'", allowed="any other name")
        choice = PreferredPlacements(plans) if isinstance(plans, Sequence) else plans
        self._shape = split.subnet.shapes[split.subnet.input]
        self._input = split.subnet.input
        here = CoordinatorSegments(split) if coordinator is None else coordinator
        self._runner = SplitRunner(split, here, devices, choice, options or SplitOptions(), links)
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._keeping: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="links", daemon=True)
        self._thread.start()

    def submit(self, x_NCHW: Array, deadline_ms: float) -> "Future[SplitAnswer]":
        """The future answer of one input. AdaptiveError: wrong shape or type, NaN, or an invalid deadline."""
        if x_NCHW.dtype != np.float32 or x_NCHW.shape != self._shape:
            got = f"{x_NCHW.dtype} {x_NCHW.shape}"
            raise AdaptiveError("input", got, allowed=f"float32 {self._shape}")
        if not np.isfinite(x_NCHW).all():
            raise AdaptiveError("input", "has NaN or infinite values", allowed="finite ones")
        if not 0 < deadline_ms < math.inf:
            raise AdaptiveError("deadline_ms", f"{deadline_ms:g}", allowed="finite, above 0")
        if self._closed:
            raise AdaptiveError("split network", "is closed", next_step="open it again")
        start_s = time.perf_counter()
        future: Future[SplitAnswer] = Future()
        future.set_running_or_notify_cancel()  # prevents cancelling, so that exactly one answer comes
        flight = Flight({self._input: x_NCHW.copy()}, start_s, start_s + deadline_ms * 1e-3, future)
        self._loop.call_soon_threadsafe(self._runner.begin, flight)
        return future

    def infer(self, x_NCHW: Array, deadline_ms: float) -> SplitAnswer:
        """The answer of one input; waits for it. AdaptiveError: as in `submit`, or the coordinator has failed."""
        return self.submit(x_NCHW, deadline_ms).result()

    def leave(self, answer: "Future[SplitAnswer]") -> None:
        """Report that nobody waits for a request: the coordinator does not finish it, and it fails if no other device does."""
        self._loop.call_soon_threadsafe(self._runner.leave, answer)

    def wait_for(self, *devices: str, timeout_s: float = 30.0) -> bool:
        """Whether devices are in within a time; without names, all devices. Excluded devices are not waited for."""
        names = set(devices or self._runner.peers)
        return asyncio.run_coroutine_threadsafe(self._wait(names, timeout_s), self._loop).result()

    async def _wait(self, names: set[str], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while any(self._runner.peers[name].state not in ("in", "excluded") for name in names):
                    await self._runner.changed.wait()
        except TimeoutError:
            return False
        return names <= self._runner.links().keys()

    @property
    def links(self) -> dict[str, MeasuredLink]:
        """Links of the devices that are in and were heard since their last late answer."""
        return self._runner.links()

    @property
    def direct_links(self) -> dict[tuple[str, str], MeasuredLink]:
        """Direct links between other devices, from the first to the second."""
        return self._runner.routes.links

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason of each device; states are in, out, connecting and excluded."""
        return {name: (peer.state, peer.reason) for name, peer in self._runner.peers.items()}

    @property
    def counts(self) -> SplitCounts:
        """Counts over all requests so far."""
        return self._runner.counts

    @property
    def events(self) -> tuple[SplitEvent, ...]:
        """Events of devices, of links between them, and of the plan, the latest last."""
        return tuple(self._runner.events)

    def close(self) -> None:
        """End the connections; requests without an answer fail."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(CLOSE_LIMIT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._keeping = self._loop.create_task(self._runner.keep_peers())
        try:
            self._loop.run_until_complete(asyncio.wait([self._keeping]))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _end(self) -> None:
        assert self._keeping is not None, "the loop runs"
        self._keeping.cancel()

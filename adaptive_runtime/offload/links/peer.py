"""A device that gets segments from the coordinator: connected, measured, out after a fault, back when it answers again.

Each peer belongs to one event loop, in which `keep` runs as long as the device may be used.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from adaptive_runtime.base.devices import DeviceAddress
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links.connection import (
    BY_COORDINATOR,
    PeerAnswer,
    PeerConnection,
    PeerLostError,
    PeerRefusedError,
    PeerTimes,
    RunWay,
)
from adaptive_runtime.offload.links.measures import LEAST_BLOCK_BYTES, LEAST_MS, MeasuredLink, SharedLink, block_bytes
from profiling_agents.messages import ActivationCoding, Format, Receiver, SentActivation, ServedSubNet, Welcome
from profiling_agents.streams import proof_of

__all__ = ["Peer", "PeerAnswer", "PeerLostError", "PeerState", "PeerTimes", "RunWay"]

PeerState = Literal["connecting", "in", "out", "excluded"]
"""excluded: it has other weights, answers wrongly, or refuses the coordinator; only a person brings it back."""
PINGS = 3
CONNECT_LIMIT_S = 5.0
PROBE_LIMIT_S = 10.0
CHECK_S = 0.25
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class Peer:
    """One device. subnets: the same segments by the format of their files, the preferred format first.

    files: of all formats, by sha256. report: called at each change of state with the reason in one line. link: shared by all
    connections to this device; None: this is the only one.
    """

    def __init__(
        self,
        name: str,
        address: DeviceAddress,
        subnets: Mapping[Format, ServedSubNet],
        files: Mapping[str, bytes],
        report: Callable[["Peer", str], None] | None = None,
        link: SharedLink | None = None,
    ) -> None:
        address.check()
        self.name, self.address = name, address
        self.state: PeerState = "connecting"
        self.reason = ""
        self.pause_s = FIRST_PAUSE_S
        """Length of the next pause after a fault; doubled by every fault, reset by an answer in time.

        Also reset after the peer has been up for the longest pause.
        """
        self._subnets, self._files, self._report = subnets, files, report
        self._link = SharedLink() if link is None else link
        self._connection: PeerConnection | None = None
        self._welcome: Welcome | None = None

    @property
    def link(self) -> MeasuredLink:
        """The current measures of the link."""
        return self._link.link

    @property
    def usable(self) -> bool:
        """Whether it is in, and was heard since its last late answer."""
        return self.state == "in" and not self._link.doubted

    @property
    def in_flight(self) -> int:
        """Number of pending requests."""
        return 0 if self._connection is None else self._connection.in_flight

    @property
    def gives(self) -> bool:
        """Whether it is in, and its operator allows other devices to which it may give values."""
        return self.state == "in" and self._welcome is not None and self._welcome.hands

    def receiver(self, ticket: str) -> Receiver:
        """This device as a receiver of values for the run that waits with a ticket, as other devices reach it.

        PeerLostError.
        """
        if self.state != "in" or self._welcome is None:
            raise PeerLostError(self.reason or "not connected")
        digest, address = self._subnet_of(self._welcome).digest, self.address
        proof = proof_of(address.token, digest)
        return Receiver(url=address.peer_url or address.url, digest=digest, proof=proof, ticket=ticket)

    async def run(
        self,
        first: int,
        last: int,
        tensors: Sequence[tuple[SentActivation, bytes]],
        coding: ActivationCoding,
        way: RunWay = BY_COORDINATOR,
    ) -> PeerAnswer:
        """Run segments first … last on coded tensors. PeerLostError: it is out, or went out meanwhile."""
        return await self._open().run(first, last, tensors, coding, way)

    async def give(self, ticket: str, activations: tuple[SentActivation, ...], content: bytes | bytearray) -> None:
        """Send coded tensors to its run that waits with a ticket. PeerLostError."""
        await self._open().give(ticket, activations, content)

    def _open(self) -> PeerConnection:
        if self.state != "in" or self._connection is None:
            raise PeerLostError(self.reason or "not connected")
        return self._connection

    def was_in_time(self) -> None:
        """Count an answer in time: the next fault counts as the first."""
        self.pause_s = FIRST_PAUSE_S

    def lose(self, reason: str) -> None:
        """Take it out for a while; its requests fail with the reason."""
        if self.state == "in" and self._connection is not None:
            self._link.doubt()
            self._connection.end(reason)
            self._leave(reason)

    def exclude(self, reason: str) -> None:
        """Take it out for good."""
        if self._connection is not None:
            self._connection.end(reason)
        self._connection = None
        if self.state != "excluded":
            self._change("excluded", reason)

    async def keep(self) -> None:
        """Connect, probe while idle, and reconnect after faults, until it is excluded or this task is cancelled."""
        try:
            while self.state != "excluded":
                try:
                    connection = await self._connect()
                    since_s = time.monotonic()
                    await self._stay(connection)
                    if time.monotonic() - since_s >= LONGEST_PAUSE_S:
                        self.was_in_time()  # maybe no request needed it, and the previous fault is long ago
                    self._leave(connection.lost.result())
                except (PeerRefusedError, AdaptiveError) as error:
                    self.exclude(str(error))
                except PeerLostError as error:
                    self._leave(str(error))
                if self.state == "out":
                    pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, LONGEST_PAUSE_S)
                    await self._rest(pause_s * random.uniform(0.5, 1.0))
        finally:
            if self._connection is not None:
                self._connection.end("the coordinator has ended")

    async def _rest(self, pause_s: float) -> None:
        """Wait for a pause, or until another connection to the device is ready."""
        arrivals, until_s = self._link.arrivals, time.monotonic() + pause_s
        while (left_s := until_s - time.monotonic()) > 0 and self._link.arrivals == arrivals:
            await asyncio.sleep(min(left_s, CHECK_S))

    async def _connect(self) -> PeerConnection:
        """Connect, load the SubNet, and measure the link unless another connection has measured it."""
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                connection, welcome = await PeerConnection.open(self.address, self._link)
        except TimeoutError as error:
            raise PeerLostError(f"has not greeted within {CONNECT_LIMIT_S:g} s") from error
        try:
            await connection.load(self._subnet_of(welcome), self._files)
            async with self._link.measuring() as is_unknown:
                if is_unknown:
                    await _measure(connection)
        except TimeoutError as error:
            connection.end("slow")
            raise PeerLostError(f"its first probes took more than {PROBE_LIMIT_S:g} s") from error
        except BaseException:
            connection.end("not loaded")
            raise
        self._connection, self._welcome = connection, welcome
        self._change("in", "connected")
        self._link.arrived()
        return connection

    def _subnet_of(self, welcome: Welcome) -> ServedSubNet:
        """The SubNet in a format that the device accepts. PeerRefusedError: no format fits."""
        found = next((subnet for form, subnet in self._subnets.items() if form in welcome.formats), None)
        if found is None:
            raise PeerRefusedError(
                f"runs {welcome.backend}, which takes files of {', '.join(welcome.formats)}; this SubNet has files of "
                f"{', '.join(self._subnets)}; export it with files for that backend"
            )
        return found

    async def _stay(self, connection: PeerConnection) -> None:
        """Wait until the connection is lost. Probe an idle link as often as allowed, and a doubted device at once."""
        while not connection.lost.done():
            await asyncio.wait([connection.lost], timeout=CHECK_S)
            if connection.lost.done():
                continue
            if self._link.doubted:
                await _probe(connection, 0)
            elif not connection.in_flight and self._link.idle(CHECK_S) and (due := self._link.due()) is not None:
                await _probe(connection, due.size)
                self._link.answered(due)

    def _leave(self, reason: str) -> None:
        self._connection = None
        if self.state not in ("out", "excluded"):
            self._change("out", reason)
        elif self.state == "out":
            self.reason = reason

    def _change(self, state: PeerState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._link.turned()
        if self._report is not None:
            self._report(self, reason)


async def _measure(connection: PeerConnection) -> None:
    """Measure the link for the first time. TimeoutError: it is too slow."""
    async with asyncio.timeout(PROBE_LIMIT_S):
        for _ in range(PINGS):
            await connection.probe(0, 0)
        size = LEAST_BLOCK_BYTES
        first = (await connection.probe(size, size, counts=False)).times
        up, down = (block_bytes(size * 8e-3 / max(ms, LEAST_MS)) for ms in (first.up_ms, first.down_ms))
        await connection.probe(up, down)


async def _probe(connection: PeerConnection, size: int) -> None:
    """Send a probe; end the connection if no answer comes."""
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            await connection.probe(size, size)
    except TimeoutError:
        connection.end("a probe was not answered")

"""A link between the coordinator and a device: a TCP relay that shapes, delays, cuts, freezes and garbles what crosses it.

In a thread of its own for tests, or as a process:
`python -m tests.support.links.relay PORT HOST:PORT --delay-ms 10 --up-mbps 5`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from benchmarks.simulation.link_trace import BandwidthTrace
from tests.support.agents.agent_processes import environment

CHUNK_BYTES, PACKET_BYTES = 1 << 14, 1460
"""What crosses at once: without a limit of bandwidth, and with one."""
AHEAD_S = 5e-3
"""So much of the link's time is taken from the sender before it has passed: timers of 1 ms are too coarse for packets."""
TICK_S = 0.02


class LinkRelay:
    """Up is towards the target. mbps: None: unlimited. Every method may be called from any thread."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        delay_ms: float = 0.0,
        up_mbps: float | None = None,
        down_mbps: float | None = None,
        trace: BandwidthTrace | None = None,
    ) -> None:
        """delay_ms: of each direction. trace: what holds instead, from now on."""
        self.target = target
        self.delay_ms = delay_ms
        self.mbps = {"up": up_mbps, "down": down_mbps}
        self.port = 0
        self.bytes = {"up": 0, "down": 0}
        self.closed_connections = 0
        self._trace, self._start_s = trace, time.monotonic()
        self._cut = False
        self._cut_after: dict[str, int | None] = {"up": None, "down": None}
        self._flip_after: dict[str, int | None] = {"up": None, "down": None}
        self._flowing = threading.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def cut(self) -> None:
        """End all connections, and new ones at once, until `mend`."""
        self._cut = True
        self.soon(self._abort)

    def soon(self, work: Callable[[], object]) -> None:
        """Have something done in the relay's thread."""
        assert self._loop is not None, "serves"
        self._loop.call_soon_threadsafe(work)

    def mend(self) -> None:
        """Take connections again."""
        self._cut = False

    def cut_after(self, direction: str, count: int) -> None:
        """End all connections when so many more bytes have crossed."""
        self._cut_after[direction] = self.bytes[direction] + count

    def flip_after(self, direction: str, count: int) -> None:
        """Flip one bit of the byte that comes after so many more."""
        self._flip_after[direction] = self.bytes[direction] + count

    def hold(self) -> None:
        """Nothing crosses until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """Everything crosses again."""
        self._flowing.set()

    async def serve(self, host: str = "127.0.0.1", port: int = 0, ready: threading.Event | None = None) -> None:
        """Relay until cancelled."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, host, port)
        self.port = server.sockets[0].getsockname()[1]
        if ready is not None:
            ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            self._abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, there_writer}
        self._writers |= pair
        ways = (("up", reader, there_writer), ("down", there_reader, writer))
        tasks = [asyncio.create_task(self._forward(*way)) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for one in pair:
            one.transport.abort()
        self._writers -= pair
        self.closed_connections += 1

    async def _forward(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take at the link's bandwidth, deliver after its delay. Each packet has its time, so that late timers lose none."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        delivering = asyncio.create_task(self._deliver(late, writer))
        free_s = 0.0
        try:
            with suppress(OSError):
                while chunk := await reader.read(self._most(direction)):
                    mbps, delay_ms = self._now(direction)
                    now_s = time.monotonic()
                    free_s = max(now_s, free_s) + (0.0 if mbps is None else len(chunk) * 8e-6 / mbps)
                    await asyncio.sleep(max(free_s - now_s - AHEAD_S, 0.0))
                    while not self._flowing.is_set():
                        await asyncio.sleep(TICK_S)
                    await late.put((free_s + delay_ms * 1e-3, self._crossed(direction, chunk)))
                while not late.empty():
                    await asyncio.sleep(TICK_S)
        finally:
            delivering.cancel()

    def _crossed(self, direction: str, chunk: bytes) -> bytes:
        before = self.bytes[direction]
        self.bytes[direction] = after = before + len(chunk)
        flip, cut = self._flip_after[direction], self._cut_after[direction]
        if flip is not None and before <= flip < after:
            self._flip_after[direction] = None
            garbled = bytearray(chunk)
            garbled[flip - before] ^= 0x10
            chunk = bytes(garbled)
        if cut is not None and after >= cut:
            self._cut_after[direction] = None
            self.soon(self._abort)
            chunk = chunk[: max(cut - before, 0)]
        return chunk

    async def _deliver(self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                at_s, chunk = await late.get()
                await asyncio.sleep(max(at_s - time.monotonic(), 0.0))
                writer.write(chunk)
                await writer.drain()

    def _most(self, direction: str) -> int:
        return CHUNK_BYTES if self._now(direction)[0] is None else PACKET_BYTES

    def _now(self, direction: str) -> tuple[float | None, float]:
        """Bandwidth [Mbit/s] and delay [ms] of a direction."""
        if self._trace is None:
            return self.mbps[direction], self.delay_ms
        link = self._trace.at(time.monotonic() - self._start_s)
        return (link.up_mbps if direction == "up" else link.down_mbps), (link.round_trip_ms or 0.0) / 2

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()


@contextmanager
def relayed(
    url: str,
    *,
    delay_ms: float = 0.0,
    up_mbps: float | None = None,
    down_mbps: float | None = None,
    trace: BandwidthTrace | None = None,
) -> Iterator[LinkRelay]:
    """A relay in a thread in front of `tcp://HOST:PORT`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    target = (parts.hostname, parts.port)
    relay = LinkRelay(target, delay_ms=delay_ms, up_mbps=up_mbps, down_mbps=down_mbps, trace=trace)
    ready, ended = threading.Event(), threading.Event()
    tasks: list[asyncio.Task[None]] = []

    async def serve() -> None:
        tasks.append(asyncio.create_task(relay.serve(ready=ready)))
        await asyncio.wait(tasks)
        ended.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield relay
    finally:
        relay.release()
        relay.soon(tasks[0].cancel)
        assert ended.wait(60)
        thread.join(60)


def address_of(relay: LinkRelay) -> str:
    """The relay's own address."""
    return f"tcp://127.0.0.1:{relay.port}"


class RelayProcess:
    """A relay as a process in front of `tcp://HOST:PORT`, which threads of this one do not hold up. Close it."""

    def __init__(self, url: str) -> None:
        words = (sys.executable, "-m", "tests.support.links.relay", "0", urlsplit(url).netloc, "--controlled")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert self._process.stdout is not None
        self.url = f"tcp://127.0.0.1:{int(self._process.stdout.readline())}"

    def set(self, delay_ms: float, up_mbps: float, down_mbps: float) -> None:
        """What the link is like from now on; it is mended if it was cut."""
        self._tell({"delay_ms": delay_ms, "up": up_mbps, "down": down_mbps})

    def cut(self) -> None:
        """End all connections, and new ones at once, until `set`."""
        self._tell(None)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _tell(self, link: dict[str, float] | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(link)}\n")
        self._process.stdin.flush()


def follow_lines(relay: LinkRelay, lines: Iterable[str]) -> None:
    """What `RelayProcess` tells."""
    for line in lines:
        link = json.loads(line)
        if link is None:
            relay.cut()
            continue
        relay.delay_ms, relay.mbps = link["delay_ms"], {"up": link["up"], "down": link["down"]}
        relay.mend()


def main() -> None:
    """Relay as a process, until it is ended, or its input does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("target", help="HOST:PORT")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="of each direction")
    parser.add_argument("--up-mbps", type=float)
    parser.add_argument("--down-mbps", type=float)
    parser.add_argument("--controlled", action="store_true", help="tell the port, and follow lines of the input")
    given = parser.parse_args()
    host, _, port = given.target.rpartition(":")
    if given.controlled:
        with relayed(f"tcp://{given.target}") as relay:
            print(relay.port, flush=True)
            follow_lines(relay, sys.stdin)
        return
    relay = LinkRelay((host, int(port)), delay_ms=given.delay_ms, up_mbps=given.up_mbps, down_mbps=given.down_mbps)
    asyncio.run(relay.serve(given.host, given.port))


if __name__ == "__main__":
    main()

"""A small HTTP/1.1 client for thousands of simulated devices in one process: one connection each, plain HTTP on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
AGAIN_S = 0.5
LONGEST_AGAIN_S = 8.0


class ThinAnswer(NamedTuple):
    """status: of HTTP. headers: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class ThinClient:
    """Requests one after the other to one service, with one token, over a connection that stays open while it can."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ThinAnswer:
        """One answer. OSError: none came. A connection that the service has closed meanwhile is made anew."""
        reused = self._streams is not None
        try:
            return await self._once(method, path, body, headers or {})
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            if not reused:
                raise ConnectionError(str(error)) from error
        try:
            return await self._once(method, path, body, headers or {})
        except asyncio.IncompleteReadError as error:
            self.close()
            raise ConnectionError(str(error)) from error

    async def patient(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> ThinAnswer:
        """One answer, asked for again while the service is away or has too much to do."""
        pause_s = AGAIN_S
        while True:
            try:
                answer = await self.request(method, path, body, headers)
                if answer.status not in (429, 503):
                    return answer
            except OSError:
                self.close()
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_AGAIN_S, 2 * pause_s)

    def close(self) -> None:
        """End the connection, whatever is on its way."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    async def ended(self) -> None:
        """End the connection, and wait until it is."""
        streams = self._streams
        self.close()
        if streams is not None:
            with suppress(OSError):
                await streams[1].wait_closed()

    async def begin(self, method: str, path: str, headers: Mapping[str, str], length: int, part: bytes) -> None:
        """A request of so many bytes, of which a part is sent."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{lines}Content-Length: {length}\r\n\r\n"
        self._streams[1].write(head.encode() + part)
        await self._streams[1].drain()

    async def _once(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> ThinAnswer:
        await self.begin(method, path, headers, len(body), body)
        assert self._streams is not None
        reader = self._streams[0]
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if found.get("transfer-encoding") == "chunked":
            content = b"".join([chunk async for chunk in _chunks(reader)])
        else:
            content = await reader.readexactly(0 if status == 204 else int(found.get("content-length", "0")))
        if found.get("connection", "").lower() == "close":
            self.close()
        return ThinAnswer(status, found, content)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")

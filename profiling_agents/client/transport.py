"""HTTP to one agent: token, retries with back-off, and refusals turned into AgentError lines."""

import math
import random
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from pydantic import ValidationError

from profiling_agents.frames import CHECKSUM_HEADER, GarbledError, check, checksum, from_line
from profiling_agents.messages import AgentBusyError, AgentError, ErrorBody

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
LONGEST_WAIT_S = 60.0

DISK_FULL = 507


class MissingFilesError(Exception):
    """The agent does not have these files (any more)."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        super().__init__(f"{len(digests)} file(s) to upload again")
        self.digests = digests


class LostError(Exception):
    """The connection failed, or the agent asked to try again (`reached`); another attempt may succeed."""

    def __init__(self, line: str, *, reached: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(line)
        self.reached = reached
        self.retry_after_s = retry_after_s


class Transport:
    """Requests to one agent. Thread-safe.

    `patience_s`: a lost connection is retried for this long, and at least ATTEMPTS times. `until_s`: deadline by the monotonic
    clock for all waiting.
    """

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.patience_s, self.until_s = 0.0, math.inf
        plain = self.url.startswith("http:") and ca_file is None
        verify = False if plain else _trusted(ca_file)
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                verify=verify,
                trust_env=False,
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise AgentError(f"agent {url}: not a usable address or token ({error})") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> bytes:
        """Body of the answer, with its checksum verified. AgentError when refused, or when all attempts failed."""
        checked = {**(headers or {}), CHECKSUM_HEADER: checksum(content)}
        retries = Retries(self)
        while True:
            timeout = self._timeout(timeout_s)
            try:
                with self._failures():
                    response = self._http.request(method, path, content=content, headers=checked, timeout=timeout)
                self._check(response)
                return response.content
            except LostError as error:
                retries.wait(error)

    @contextmanager
    def lines(self, path: str, *, headers: Mapping[str, str], timeout_s: float) -> Iterator[Iterator[bytes]]:
        """Contents of the lines of a streamed answer as they arrive, without the empty keep-alive lines.

        LostError when the connection breaks, garbles a line, or brings nothing for `timeout_s`; not retried here.
        """
        timeout = self._timeout(timeout_s)
        with self._failures(), self._http.stream("GET", path, headers=dict(headers), timeout=timeout) as response:
            if not response.is_success:
                response.read()
                self._check(response)
            yield (from_line(line) for line in self._in_time(_split(response.iter_bytes())) if line)

    def left_s(self) -> float:
        """Time until `until_s` [s]. AgentError if it has passed."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise AgentError(f"agent {self.url}: did not answer within the time that it was given")
        return left_s

    def _timeout(self, timeout_s: float) -> httpx.Timeout:
        left_s = self.left_s()
        return httpx.Timeout(min(timeout_s, left_s), connect=min(CONNECT_TIMEOUT_S, left_s))

    def _in_time(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        """The lines, empty ones included; the deadline is checked at each, since an agent can send empty lines for ever."""
        for line in lines:
            self.left_s()
            yield line

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.UnsupportedProtocol as error:
            raise AgentError(f"agent {self.url}: {error}; give http://HOST:PORT or https://HOST:PORT") from error
        except (httpx.TransportError, httpx.StreamError, httpx.DecodingError) as error:
            raise LostError(str(error) or type(error).__name__) from error
        except GarbledError as error:
            raise LostError(f"an answer came garbled: {error}", reached=True) from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise AgentError(f"agent {self.url}: the connection was closed here") from error

    def _check(self, response: httpx.Response) -> None:
        """Accept a success. LostError for refusals that another attempt may mend, else AgentError with the agent's own line."""
        try:
            check(response.content, response.headers.get(CHECKSUM_HEADER))
            refusal = None if response.is_success else ErrorBody.model_validate_json(response.content)
        except (GarbledError, ValidationError) as error:
            line = f"answered {response.status_code}, which cannot be read; is it an AutoTailor agent?"
            after_s = _seconds(response)
            raise LostError(line, reached=True, retry_after_s=after_s) from error
        if refusal is None:
            return
        if refusal.missing:
            raise MissingFilesError(refusal.missing)
        if response.status_code == 429 or (response.status_code >= 500 and response.status_code != DISK_FULL):
            raise LostError(refusal.error, reached=True, retry_after_s=_seconds(response))
        if response.status_code == 423:
            raise AgentBusyError(f"agent {self.url}: {refusal.error}")
        raise AgentError(f"agent {self.url}: {refusal.error}")


class Retries:
    """The attempts at one request: the pauses between them grow with each failure, until the attempts are used up."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._failures = 0
        self._since_s = 0.0

    def reset(self) -> None:
        """Count anew after a success."""
        self._failures = 0

    def wait(self, error: Exception) -> None:
        """Wait before the next attempt; AgentError when the attempts are used up."""
        if self._failures == 0:
            self._since_s = time.monotonic()
        self._failures += 1
        waited_s = time.monotonic() - self._since_s
        lost = error if isinstance(error, LostError) else LostError(str(error), reached=True)
        if self._failures >= ATTEMPTS and waited_s >= self._transport.patience_s:
            line = f"{lost}; asked {self._failures} times"
            if not lost.reached:
                line = (
                    f"not reachable ({lost}) after {self._failures} attempts; is it running, and is the address right?"
                )
            raise AgentError(f"agent {self._transport.url}: {line}") from error
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1)) * random.uniform(0.5, 1.0)
        time.sleep(min(max(pause_s, lost.retry_after_s), self._transport.left_s()))


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends. Only the line feed byte ends a line: names of models may hold other line breaks."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        raise GarbledError("it ends inside a line")


def _seconds(response: httpx.Response) -> float:
    """The wait that the agent asks for [s]; the header has no checksum, so the number is kept within bounds."""
    after = response.headers.get("retry-after", "")
    return min(float(after), LONGEST_WAIT_S) if after.isascii() and after.isdigit() else 0.0


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Certificates that https is checked against; AgentError for a file without any."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"certificate '{ca_file}': cannot be used ({error})") from error

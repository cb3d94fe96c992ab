"""HTTP to one agent: token, retries with back-off, and refusals turned into AgentError lines."""

import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from profiling_agents.messages import AgentBusyError, AgentError, ErrorBody

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.2

Answer = TypeVar("Answer")


class MissingFilesError(Exception):
    """The agent does not have these files (any more)."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        super().__init__(f"{len(digests)} file(s) to upload again")
        self.digests = digests


class LostError(Exception):
    """The connection failed, or the agent asked to try again; another attempt may succeed."""


class Transport:
    """Requests to one agent. Thread-safe."""

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None) -> None:
        self.url = url.rstrip("/")
        verify = _trusted(ca_file)
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
        self, method: str, path: str, *, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Body of the answer. AgentError when refused, or when all attempts failed."""

        def attempt() -> bytes:
            with self._failures():
                response = self._http.request(method, path, content=content, headers=dict(headers or {}))
            self._check(response)
            return response.content

        return self.retried(attempt)

    @contextmanager
    def lines(
        self, path: str, *, content: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Iterator[Iterator[str]]:
        """Lines of a streamed answer as they come. LostError when the connection breaks; not retried here."""
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        with (
            self._failures(),
            self._http.stream("POST", path, content=content, headers=dict(headers), timeout=timeout) as response,
        ):
            if not response.is_success:
                response.read()
            self._check(response)
            yield response.iter_lines()

    def retried(self, attempt: Callable[[], Answer]) -> Answer:
        """`attempt()`, again with growing pauses while it is lost; then AgentError."""
        failures = 0
        while True:
            try:
                return attempt()
            except LostError as error:
                failures += 1
                self.pause(failures, error)

    def pause(self, failures: int, error: Exception) -> None:
        """Wait before the next attempt, longer after each failure; AgentError when there were enough."""
        if failures >= ATTEMPTS:
            raise AgentError(
                f"agent {self.url}: not reachable ({error}) after {failures} attempts; "
                "is it running, and is the address right?"
            ) from error
        time.sleep(FIRST_PAUSE_S * 2 ** (failures - 1) * random.uniform(0.5, 1.0))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.UnsupportedProtocol as error:
            raise AgentError(f"agent {self.url}: {error}; give http://HOST:PORT or https://HOST:PORT") from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise LostError(str(error) or type(error).__name__) from error

    def _check(self, response: httpx.Response) -> None:
        """Pass a success; LostError for what may mend itself, else AgentError with the agent's own line."""
        if response.is_success:
            return
        try:
            refusal = ErrorBody.model_validate_json(response.content)
        except ValidationError:
            refusal = ErrorBody(error=f"answered {response.status_code}; is it an AutoTailor agent?")
        if refusal.missing:
            raise MissingFilesError(refusal.missing)
        if response.status_code == 429 or response.status_code >= 500:
            raise LostError(refusal.error)
        if response.status_code == 423:
            raise AgentBusyError(f"agent {self.url}: {refusal.error}")
        raise AgentError(f"agent {self.url}: {refusal.error}")


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Certificates that https is checked against; AgentError for a file that holds none."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise AgentError(f"certificate '{ca_file}': cannot be used ({error})") from error

"""HTTP client of a registry, with the standard library alone: a device needs nothing else."""

import hashlib
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.fleet.messages import AssignedBundle, EnrolAsked, Enrolled, Telemetry
from profiling_agents.messages import ErrorBody, Message, one_line

TIMEOUT_S = 30.0
MOST_BYTES = 1 << 20
"""Size limit of an answer that is not a file."""
CHUNK = 1 << 20

M = TypeVar("M", bound=Message)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that a token is sent to no other host."""

    def redirect_request(self, *arguments: object) -> None:
        """Refuse."""
        return


class RegistryClient:
    """Requests to one registry with one token. Every failure is an AdaptiveError of one line without the token."""

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        """ca_file: certificate (PEM) that https is checked against; None: those of the system."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise AdaptiveError(f"registry '{url}'", "is no address", allowed="http://HOST:PORT or https://HOST:PORT")
        self._token = token
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise AdaptiveError(f"certificate '{ca_file}'", f"cannot be used ({error})") from error
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect()
        )

    def enrol(self, asked: EnrolAsked) -> Enrolled:
        """Enrol with a one-time token; returns the device's own token."""
        return self._post("/v1/enrolments", asked, Enrolled)

    def tell(self, told: Telemetry) -> AssignedBundle:
        """Report sums; returns the assigned bundle."""
        return self._post("/v1/telemetry", told, AssignedBundle)

    def fetch(self, digest: str, file: Path, most_bytes: int) -> None:
        """Fetch a file by its sha256, which is checked while it arrives."""
        found, size = hashlib.sha256(), 0
        try:
            with self._open(f"/v1/files/{digest}") as answer, file.open("wb") as stream:
                while (chunk := answer.read(CHUNK)) and size <= most_bytes:
                    size += len(chunk)
                    found.update(chunk)
                    stream.write(chunk)
        except (OSError, HTTPException) as error:
            raise self._failed(error) from error
        if found.hexdigest() != digest:
            raise AdaptiveError(f"registry {self.url}", f"file {digest} came with other bytes", next_step="try again")

    def _post(self, path: str, message: Message, answer: type[M]) -> M:
        try:
            with self._open(path, message.model_dump_json().encode()) as stream:
                return answer.model_validate_json(stream.read(MOST_BYTES))
        except ValidationError as error:
            got = f"its answer cannot be read ({one_line(error)})"
            raise AdaptiveError(f"registry {self.url}", got, next_step="is it an AutoTailor registry?") from error
        except (OSError, HTTPException) as error:
            raise self._failed(error) from error

    def _open(self, path: str, content: bytes | None = None) -> IO[bytes]:
        request = urllib.request.Request(f"{self.url}{path}", content)
        request.add_header("Authorization", f"Bearer {self._token}")
        found: IO[bytes] = self._opener.open(request, timeout=TIMEOUT_S)
        return found

    def _failed(self, error: OSError | HTTPException) -> AdaptiveError:
        where = f"registry {self.url}"
        if not isinstance(error, urllib.error.HTTPError):
            reason = getattr(error, "reason", error)
            return AdaptiveError(
                where, f"is not reached ({reason})", next_step="is it running, and is the address right?"
            )
        try:
            line = ErrorBody.model_validate_json(error.read(MOST_BYTES)).error
        except (ValidationError, OSError):
            line = "which cannot be read; is it an AutoTailor registry?"
        return AdaptiveError(where, f"answered {error.code}: {line}")

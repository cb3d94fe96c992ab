"""A device of a fleet: its folder, and its HTTP client of the registry.

The client uses the standard library alone: a device needs nothing else. The folder has:

FOLDER/member.json          the registry's address, the device's token, unsent sums; readable by its user alone
FOLDER/token                the device's token again, for an agent that pulls from the fleet's relay; as private
FOLDER/bundles/DIGEST/      bundles by the sha256 of their manifests
FOLDER/current              link to the bundle that should serve; missing: the device's own
"""

import hashlib
import os
import shutil
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage, replace_file
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, SIGNATURE_FILE, BundleManifest, OpenBundle, read_key
from adaptive_runtime.bundle.bundles.bundle import verify
from adaptive_runtime.fleet.messages import AssignedBundle, DeviceToken, EnrolAsked, Enrolled, ServedSums, Telemetry
from profiling_agents.messages import Digest, ErrorBody, Message, one_line

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

    def tell(self, described: Telemetry) -> AssignedBundle:
        """Report sums; returns the assigned bundle."""
        return self._post("/v1/telemetry", described, AssignedBundle)

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


MEMBER_FILE = "member.json"
TOKEN_FILE = "token"
MOST_MANIFEST_BYTES = 64 << 20
TELLINGS = 3
"""Attempts to report sums with a later number when the registry already has the number."""

VERSION: Literal[2] = 2


class MemberState(FileMessage):
    """State of a device in its fleet.

    active: the bundle that should serve. served: the bundle in the last report. untold: telemetry that may not have arrived; it
    is sent again first. waiting: sums not yet sent, one for each bundle.
    """

    WHERE: ClassVar[str] = MEMBER_FILE
    NEXT_STEP: ClassVar[str] = "enrol: autotailor-runtime fleet enrol"
    READ_VERSION: ClassVar[int | None] = VERSION
    EARLIER_VERSIONS: ClassVar[frozenset[int]] = frozenset({1})
    CONTENT: ClassVar[str] = "a device of a fleet"

    version: Literal[2] = VERSION
    url: str
    device: str
    token: DeviceToken
    ca_file: str | None = None
    sequence: int = 0
    active: Digest | None = None
    served: Digest | None = None
    untold: Telemetry | None = None
    waiting: tuple[ServedSums, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, found: Any) -> Any:
        """Convert version 1, which assumed that the active bundle had answered."""
        if not isinstance(found, dict) or found.get("version") != 1:
            return found
        active, sums = found.get("active"), found.get("waiting")
        waiting = [{"bundle": active, "sums": sums}] if sums else []
        return {**found, "version": 2, "served": active, "waiting": waiting}


class FleetMember:
    """A device that has enrolled. Only one process may use it at a time."""

    def __init__(self, folder: Path, state: MemberState) -> None:
        self.folder, self.state = folder, state
        ca_file = None if state.ca_file is None else Path(state.ca_file)
        self._registry = RegistryClient(state.url, state.token, ca_file)
        self.restored = False
        """Whether the registry knows newer reports than this folder: the folder is a copy, mostly from a backup."""

    @classmethod
    def enrol(cls, folder: Path, url: str, token: str, asked: EnrolAsked, ca_file: Path | None = None) -> Self:
        """Enrol with a one-time token and create the folder.

        AdaptiveError: it has a device already, or the registry refuses.
        """
        if (folder / MEMBER_FILE).exists():
            raise AdaptiveError(str(folder), "is of a device that has enrolled", next_step="name another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = RegistryClient(url, token, ca_file).enrol(asked)
            certificate = None if ca_file is None else str(ca_file.resolve())
            state = MemberState(url=url, device=found.device, token=found.token, ca_file=certificate)
            member = cls(folder, state)
            member._keep(state)
            _write_private(folder / TOKEN_FILE, f"{found.token}\n")
        except OSError as error:
            raise AdaptiveError(str(folder), f"cannot be written ({error.strerror})") from error
        return member

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The device of a folder. AdaptiveError: it has not enrolled."""
        return cls(folder, MemberState.from_file(folder / MEMBER_FILE))

    @property
    def bundle(self) -> Path | None:
        """The bundle that should serve; None: the device's own."""
        return None if self.state.active is None else self.folder / "bundles" / self.state.active

    def pull(self, served: ServedSums | None = None, key_file: Path | None = None) -> AssignedBundle:
        """Report sums, and switch to the assigned bundle.

        served: None: no requests. key_file: the key of the bundle's signature. AdaptiveError: the registry is not reached, the
        bundle is damaged or not signed (the device keeps its bundle), or another device has a copy of this folder. Sums that
        may not have arrived are sent again next time, and count once.
        """
        if served is not None:
            waiting = _added(self.state.waiting, served)
            self._keep(self.state.model_copy(update={"waiting": waiting, "served": served.bundle}))
        if self.state.untold is not None:
            self._tell(self.state.untold)
        for one in self.state.waiting or (ServedSums(bundle=self.state.served),):
            assigned = self._tell_new(one)
        if assigned.bundle != self.state.active:
            self._go_over(assigned, key_file)
        return assigned

    def _tell_new(self, one: ServedSums) -> AssignedBundle:
        """Report new sums. AdaptiveError: the registry is still ahead of this device after all attempts."""
        waiting = tuple(other for other in self.state.waiting if other != one)
        for _ in range(TELLINGS):
            described = Telemetry(sequence=self.state.sequence + 1, bundle=one.bundle, sums=one.sums)
            kept = {"sequence": described.sequence, "untold": described, "waiting": waiting}
            self._keep(self.state.model_copy(update=kept))
            assigned = self._tell(described)
            if assigned.ahead is None:
                return assigned
        self._keep(self.state.model_copy(update={"waiting": (one, *waiting)}))
        raise AdaptiveError(
            str(self.folder),
            "another device reports with a copy of it",
            next_step="enrol this device anew, in a new folder",
        )

    def _tell(self, described: Telemetry) -> AssignedBundle:
        """Send telemetry, and drop it if the registry is ahead: another copy of the folder may have sent it before."""
        assigned = self._registry.tell(described)
        update: dict[str, Any] = {"untold": None}
        if assigned.ahead is not None:
            self.restored, update["sequence"] = True, assigned.ahead
        self._keep(self.state.model_copy(update=update))
        return assigned

    def _go_over(self, assigned: AssignedBundle, key_file: Path | None) -> None:
        before, link = self.state.active, self.folder / "current"
        try:
            if assigned.bundle is None:
                link.unlink(missing_ok=True)
            else:
                self._fetch(assigned.bundle, assigned.signature, key_file)
                new = link.with_name(".current")
                new.unlink(missing_ok=True)
                new.symlink_to(Path("bundles") / assigned.bundle)
                new.replace(link)
            self._keep(self.state.model_copy(update={"active": assigned.bundle}))
            self._remove_all_but({assigned.bundle, before})
        except OSError as error:
            raise AdaptiveError(str(self.folder), f"cannot be written ({error.strerror})") from error

    def _fetch(self, digest: str, signature: str | None, key_file: Path | None) -> None:
        """Fetch the bundle's folder, complete and checked, or not at all."""
        target = self.folder / "bundles" / digest
        if target.exists() and _is_whole(target, key_file):
            return
        partial = target.with_name(f"{digest}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self._registry.fetch(digest, partial / BUNDLE_FILE, MOST_MANIFEST_BYTES)
            if signature is not None:
                (partial / SIGNATURE_FILE).write_text(f"{signature}\n", encoding="utf-8")
            if key_file is not None:
                _check_signature(partial, key_file)
            for name, facts in BundleManifest.from_file(partial / BUNDLE_FILE).files.items():
                self._registry.fetch(facts.sha256, partial / name, facts.bytes)
            opened = OpenBundle.open(partial, key_file)
            opened.verify_all()
            if opened.digest != digest:
                raise AdaptiveError(f"bundle {digest}", f"it names a file '{BUNDLE_FILE}' of its own")
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _remove_all_but(self, kept: set[str | None]) -> None:
        for folder in (self.folder / "bundles").glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, state: MemberState) -> None:
        _write_private(self.folder / MEMBER_FILE, state.to_json())
        self.state = state


def _write_private(file: Path, text: str) -> None:
    replace_file(file, text)
    os.chmod(file, 0o600)


def _added(waiting: tuple[ServedSums, ...], served: ServedSums) -> tuple[ServedSums, ...]:
    """Merged sums, one entry per bundle; the bundle that answered last is at the end."""
    same = next((one.sums for one in waiting if one.bundle == served.bundle), None)
    sums = served.sums if same is None else same.plus(served.sums)
    others = (one for one in waiting if one.bundle != served.bundle)
    return (*others, ServedSums(bundle=served.bundle, sums=sums))


def _is_whole(folder: Path, key_file: Path | None) -> bool:
    """Whether an earlier fetched bundle can serve; otherwise it is fetched again."""
    try:
        OpenBundle.open(folder, key_file).verify_all()
    except AdaptiveError:
        return False
    return True


def _check_signature(folder: Path, key_file: Path) -> None:
    """Check the signature before any name of the manifest is used. AdaptiveError."""
    verify((folder / BUNDLE_FILE).read_bytes(), folder / SIGNATURE_FILE, read_key(key_file))

"""Objects below a URL: each exists completely or not at all, and can be created only if it does not exist yet.

Object stores (S3, Google Cloud Storage) do both in one request: `If-None-Match: *`, `ifGenerationMatch=0`. On file
systems an object is first written under a temporary name beside its own. It then gets its own name by a rename, or, if
it has to be new, by a link or a rename that replaces nothing.
"""

import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from fsspec.core import url_to_fs

from flows.storage import SECRETS, SIGN, protocol_of
from profiling_agents.lines import NO_SPACE
from tasks.base.errors import UserError, shortened

ARRIVING = ".arriving-"
"""Prefix of the name of a file that is being written on a file system."""
MAKINGS = 10
CONNECT_SECONDS = 10
KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
"""Keys of ssh hosts that the user's own ssh knows; no other host is accepted."""
READ_SECONDS = 60
ATTEMPTS = 1
"""Attempts of botocore; s3fs has its own retries."""
TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
"""S3 error codes for a condition that did not hold, or that another request has just broken."""
REFUSED = {"401", "403"}
"""Google's error codes; for S3, the error is a PermissionError."""
FULL = {
    "QuotaExceeded",
    "InsufficientStorage",
    "EntityTooLarge",
    "507",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
}


class _Reached(NamedTuple):
    """Access to a protocol: options of its file system, and the errors of its packages that are not an OSError."""

    options: dict[str, Any]
    errors: tuple[type[Exception], ...] = ()


def _s3() -> _Reached:
    from botocore.exceptions import BotoCoreError, ClientError

    limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": ATTEMPTS}}
    return _Reached({"use_listings_cache": False, "config_kwargs": limits}, (BotoCoreError, ClientError))


def _gs() -> _Reached:
    from aiohttp import ClientError, ClientTimeout
    from gcsfs.retry import HttpError
    from google.auth.exceptions import GoogleAuthError

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs each error that it raises, with a traceback
    limits = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    return _Reached(
        {"use_listings_cache": False, "requests_timeout": limits}, (HttpError, GoogleAuthError, ClientError)
    )


def _ssh() -> _Reached:
    from paramiko import HostKeys, MissingHostKeyPolicy, PKey, SSHClient, SSHException

    class KnownHosts(MissingHostKeyPolicy):
        """Accepts hosts with their key in `known_hosts`. SSHException for any other host, which may be an impostor."""

        def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
            for file in KNOWN_HOSTS:
                path = file.expanduser()
                if path.is_file() and HostKeys(str(path)).check(hostname, key):
                    return
            raise SSHException(f"the key of host {hostname} is not in known_hosts; connect to it once with ssh")

    return _Reached({"host_key_policy": KnownHosts(), "timeout": CONNECT_SECONDS}, (SSHException,))


REACHED: dict[str, Callable[[], _Reached]] = {"s3": _s3, "gs": _gs, "gcs": _gs, "ssh": _ssh, "sftp": _ssh}


class Objects:
    """The objects below a URL, by names with slashes. Every method may raise a UserError, one line without secrets."""

    def __init__(self, url: str, system: Any, root: str, errors: tuple[type[Exception], ...] = ()) -> None:
        """system: fsspec's file system. root: the URL's path in it. errors: its exceptions besides OSError."""
        self.url = url
        self.system = system
        self._root = root.rstrip("/")
        self._errors: tuple[type[Exception], ...] = (OSError, *errors)
        self._turn: AbstractContextManager[object] = _MEMORY if url.startswith("memory:") else nullcontext()
        """Lock for each request, if only one at a time is possible."""

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        with self._described(), suppress(FileNotFoundError):
            content: bytes = self.system.cat_file(self.path(name))
            return content
        return None

    def size(self, name: str) -> int | None:
        """The size of an object [bytes]; None if it does not exist."""
        with self._described(), suppress(FileNotFoundError):
            found = self.system.info(self.path(name))
            return int(found["size"]) if found["type"] == "file" else None
        return None

    def modified(self, name: str) -> float:
        """Last modification of an object [s since 1970]; 0 if it does not exist."""
        with self._described(), suppress(FileNotFoundError):
            return float(self.system.modified(self.path(name)).timestamp())
        return 0.0

    def names(self, folder: str) -> list[str]:
        """Names of all objects in a folder and below, in order."""
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The size of each object in a folder and below [bytes], by its name."""
        with self._described(), suppress(FileNotFoundError):
            found = self.system.find(self.path(folder), detail=True)
            sizes = {str(path).removeprefix(self._root).lstrip("/"): int(one["size"]) for path, one in found.items()}
            return {name: size for name, size in sizes.items() if not name.rpartition("/")[2].startswith(ARRIVING)}
        return {}

    def write(self, name: str, content: bytes) -> None:
        """Write an object, replacing an existing one."""
        with self._described():
            self.system.pipe_file(self.path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if none exists. Among any number of machines one succeeds; False for the others."""
        with self._described():
            try:
                self.system.pipe_file(self.path(name), content, mode="create")
                return True
            except FileExistsError:
                return False
            except self._errors as error:
                if _code(error) in TAKEN:
                    return False
                raise

    def upload(self, file: Path, name: str) -> None:
        """Upload a file as an object, replacing an existing one."""
        with self._described():
            self.system.put_file(str(file), self.path(name))

    def download(self, name: str, file: Path) -> bool:
        """Download an object as a file; False if it does not exist."""
        with self._described(), suppress(FileNotFoundError):
            self.system.get_file(self.path(name), str(file))
            return True
        return False

    def remove(self, name: str) -> None:
        """Remove an object; a missing one is ignored."""
        with self._described(), suppress(FileNotFoundError):
            self.system.rm_file(self.path(name))

    def path(self, name: str) -> str:
        """The path of an object in fsspec's system."""
        return f"{self._root}/{name}".rstrip("/")

    def unhindered(self) -> "Objects":
        """The same objects, over a connection that file transfers do not block."""
        return self

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Raise errors of the storage as a UserError in one line. Missing objects are left to the caller."""
        with self._turn:
            try:
                yield
            except self._errors as error:
                raise described(self.url, error) from error


_MEMORY = threading.RLock()
"""Lock of all objects of this process."""


class _Files(Objects):
    """Objects that are files of a file system."""

    def write(self, name: str, content: bytes) -> None:
        with self._described(), self._beside(name, content) as (arriving, path):
            self._replace(arriving, path)

    def create(self, name: str, content: bytes) -> bool:
        with self._described(), self._beside(name, content) as (arriving, path):
            return self._name(arriving, path)

    def upload(self, file: Path, name: str) -> None:
        with self._described(), self._beside(name) as (arriving, path):
            self.system.put_file(str(file), arriving)
            self._replace(arriving, path)

    @contextmanager
    def _beside(self, name: str, content: bytes | None = None) -> Iterator[tuple[str, str]]:
        """The path of a temporary file beside an object, and the object's own path; the file is removed at the end.

        fsspec raises if another process makes a folder at the same time.
        """
        path = self.path(name)
        folder, _, last = path.rpartition("/")
        for attempt in range(MAKINGS):
            try:
                self.system.makedirs(folder, exist_ok=True)
                break
            except OSError:
                if attempt == MAKINGS - 1:
                    raise
        arriving = f"{folder}/{ARRIVING}{uuid4().hex[:12]}-{last}"
        try:
            if content is not None:
                with self.system.open(arriving, "wb") as stream:
                    stream.write(content)
            yield arriving, path
        finally:
            with suppress(*self._errors):  # it has its own name now, or the storage is gone
                self.system.rm_file(arriving)

    @abstractmethod
    def _replace(self, arriving: str, path: str) -> None:
        """Give a file its name, replacing an existing file."""

    @abstractmethod
    def _name(self, arriving: str, path: str) -> bool:
        """Give a file its name; False if another file has it."""


class _LocalFiles(_Files):
    """Files of this machine, or of a network disk that is mounted here."""

    def _replace(self, arriving: str, path: str) -> None:
        _sync(arriving)
        os.replace(arriving, path)

    def _name(self, arriving: str, path: str) -> bool:
        _sync(arriving)
        try:
            os.link(arriving, path)
        except FileExistsError:
            return False
        return True


class _RemoteFiles(_Files):
    """Files of a machine that is reached by ssh: over one connection, one request at a time."""

    def __init__(self, url: str, system: Any, root: str, errors: tuple[type[Exception], ...] = ()) -> None:
        super().__init__(url, system, root, errors)
        self._turn = threading.RLock()

    def unhindered(self) -> Objects:
        return open_objects(self.url)

    def _replace(self, arriving: str, path: str) -> None:
        self.system.ftp.posix_rename(arriving, path)

    def _name(self, arriving: str, path: str) -> bool:
        for _ in range(MAKINGS):
            try:
                self.system.ftp.rename(arriving, path)  # SFTP's own rename replaces nothing
                return True
            except OSError as error:
                if self.system.exists(path):
                    return False
                refused = error  # another file had the name, and was removed before this look; or the machine refuses
        raise refused


KINDS: dict[str, type[Objects]] = {"file": _LocalFiles, "ssh": _RemoteFiles, "sftp": _RemoteFiles}


def open_objects(url: str) -> Objects:
    """The objects below a checked address. UserError if a required package is missing, or the address cannot be reached."""
    scheme, protocol = url.partition(SIGN)[0], protocol_of(url)
    if protocol.package is not None and find_spec(protocol.package) is None:
        got = f"needs the package {protocol.package}"
        raise UserError(f"storage '{url}'", got, next_step="in the clone: pip install -e '.[cloud]'")
    reached = REACHED.get(scheme, lambda: _Reached({}))()
    errors: tuple[type[Exception], ...] = (OSError, *reached.errors)
    try:
        system, root = url_to_fs(url, skip_instance_cache=True, **reached.options)
    except errors as error:
        raise described(url, error) from error
    return KINDS.get(scheme, Objects)(url, system, root, reached.errors)


def described(url: str, error: Exception) -> UserError:
    """A storage error in one line, with the next step."""
    cause = OSError(error.strerror) if isinstance(error, OSError) and error.strerror else error
    code, text = _code(error), shortened(cause) or type(error).__name__
    next_step = "is it reachable from here? The same command goes on from where this one ends"
    if isinstance(error, FileNotFoundError) or code == "NoSuchBucket":
        text, next_step = (
            f"there is no such bucket or folder ({text})",
            "make it first, or choose another with output_dir=…",
        )
    elif code in FULL or getattr(error, "errno", None) in NO_SPACE:
        text, next_step = f"is full ({text})", "make room; the same command goes on from where this one ends"
    elif isinstance(error, PermissionError) or code in REFUSED or "redential" in f"{type(error).__name__}{text}":
        text, next_step = f"refuses ({text})", SECRETS
    return UserError(f"storage '{url}'", text, next_step=next_step)


def _code(error: BaseException) -> str:
    """The code of S3 or Google for an error or its cause."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if (code := getattr(one, "code", None)) is not None:
            return str(code)
    return "403" if str(error).startswith("Forbidden: ") else ""  # gcsfs turns it into an OSError


def _sync(path: str) -> None:
    """Flush a file's content to disk before it gets its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
